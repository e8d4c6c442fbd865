// Axes: an ordered list of a mesh's axes.
#pragma once

#include <bit>
#include <compare>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <vector>

#include "base/error.h"

namespace shardrun {

/// Axes by number, in order. A planner holds millions of such lists, so one is a single word: four
/// bits an axis, the first in the highest, and zeros behind the last.
class Axes {
 public:
  static constexpr int kMost = 15;  // axes that a mesh may have: 0 to 14

  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = int;
    using difference_type = std::ptrdiff_t;
    using pointer = const int*;
    using reference = int;

    Iterator() = default;
    explicit Iterator(uint64_t left) : left_(left) {}
    int operator*() const { return static_cast<int>(left_ >> 60) - 1; }
    Iterator& operator++() {
      left_ <<= 4;
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    friend bool operator==(const Iterator&, const Iterator&) = default;

   private:
    uint64_t left_ = 0;
  };
  using value_type = int;
  using const_iterator = Iterator;

  Axes() = default;
  Axes(std::initializer_list<int> axes) { append(axes); }
  Axes(const std::vector<int>& axes) { append(axes); }
  std::vector<int> list() const { return {begin(), end()}; }

  Iterator begin() const { return Iterator(word_); }
  Iterator end() const { return Iterator(); }
  bool empty() const { return word_ == 0; }
  size_t size() const {
    return word_ == 0 ? 0 : 16 - static_cast<size_t>(std::countr_zero(word_)) / 4;
  }
  int operator[](size_t place) const {
    return static_cast<int>(word_ >> (60 - 4 * place) & 15) - 1;
  }
  bool contains(int axis) const {
    for (int own : *this) {
      if (own == axis) return true;
    }
    return false;
  }
  /// The list as a number, another one for another list.
  uint64_t word() const { return word_; }

  void clear() { word_ = 0; }
  void push_back(int axis) { insert(size(), axis); }
  /// Before the axis at `place`, or behind the last. Throws internal: axes that no mesh has.
  void insert(size_t place, int axis) {
    SR_REQUIRE(axis >= 0 && axis < kMost && size() < kMost, internal, "axis ", axis, " as number ",
               size() + 1, " of a list; a mesh has at most ", kMost);
    const uint64_t before = place == 0 ? 0 : ~uint64_t{0} << (64 - 4 * place);
    word_ = (word_ & before) | static_cast<uint64_t>(axis + 1) << (60 - 4 * place) |
            (word_ & ~before) >> 4;
  }
  /// The axes from the one at `place` on.
  Axes from(size_t place) const {
    Axes out;
    out.word_ = word_ << 4 * place;
    return out;
  }
  template <class List>
  void append(const List& axes) {
    for (int axis : axes) push_back(axis);
  }

  void erase(size_t place) {
    const uint64_t before = place == 0 ? 0 : ~uint64_t{0} << (64 - 4 * place);
    word_ = (word_ & before) | (word_ << 4 & ~before);
  }
  /// Cuts off what is behind the first `size`, of which there are as many.
  void cut_to(size_t size) { word_ = size == 0 ? 0 : word_ & ~uint64_t{0} << (64 - 4 * size); }
  /// At a place that none has yet: axes may come in any order, but no place may stay empty.
  void put(size_t place, int axis) { word_ |= static_cast<uint64_t>(axis + 1) << (60 - 4 * place); }

  template <class Predicate>
  friend void erase_if(Axes& axes, Predicate predicate) {
    Axes kept;
    for (int axis : axes) {
      if (!predicate(axis)) kept.push_back(axis);
    }
    axes = kept;
  }
  /// In the order of words: by the first axis that differs, a list before one that goes on.
  friend auto operator<=>(const Axes&, const Axes&) = default;

 private:
  uint64_t word_ = 0;
};

}  // namespace shardrun
