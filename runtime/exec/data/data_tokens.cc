// Token files: text (a byte a token) and arrays of uint16 or uint32.
#include <algorithm>
#include <array>
#include <cstring>

#include "exec/data/data_internal.h"
#include "exec/data/data_sources.h"

namespace shardrun {
namespace {

// Files up to this size are checked against the vocabulary when they are opened, others as they are
// read.
constexpr int64_t kCheckAtOpenBytes = 64 << 20;
constexpr int64_t kCountedBytes = 16 << 20;  // for the entropy
constexpr int64_t kBufferBytes = 4096;

class TokenSource : public DataSource {
 public:
  TokenSource(std::string spec, const std::string& path, int token_bytes,
              std::vector<BatchField> fields, const DataOptions& options)
      : spec_(std::move(spec)), file_(path), token_bytes_(token_bytes), options_(options) {
    take_fields(fields);
    SR_REQUIRE(file_.size() % token_bytes_ == 0, invalid_input, path, ": ", file_.size(),
               " bytes are no whole number of ", token_bytes_, "-byte tokens");
    tokens_ = file_.size() / token_bytes_;
    place_parts();
    if (file_.size() <= kCheckAtOpenBytes) check_all();
  }

  void read(int64_t batch, Split split, const BatchField& field, const Box& box,
            void* out) const override {
    if (field.role == BatchField::Role::input && field.name != input_) {
      fill_constant(field, box, out);
      return;
    }
    const bool validation = split == Split::validation;
    const int64_t shift = field.role == BatchField::Role::target ? shift_ : 0;
    int64_t sample = -1, start = 0;                  // the sample at hand
    int64_t first = 0, end = 0;                      // what is buffered of it
    std::array<unsigned char, kBufferBytes> buffer;  // as in the file
    for_box(field.type.shape, box, [&](int64_t index, int64_t i) {
      const int64_t at = index % context_;
      if (index / context_ != sample) {
        sample = index / context_;
        start = shift + (validation ? validation_start(batch * samples_ + sample)
                                    : training_start(batch * samples_ + sample));
        end = 0;
      }
      if (at < first || at >= end) {
        first = at, end = std::min(context_, at + kBufferBytes / token_bytes_);
        load(start + first, end - first, buffer.data());
      }
      store_integer(out, field.type.dtype, i,
                    checked(token(buffer.data(), at - first), start + at));
    });
  }

  int64_t batches(Split split) const override {
    return split == Split::validation ? validation_batches_ : 0;
  }

  std::string describe() const override {
    const std::string targets =
        target_.empty()
            ? std::string()
            : str("; targets are ", shift_ == 0 ? "the same tokens" : "the tokens behind them");
    return str(spec_, ": ", tokens_, " tokens, ", training_tokens_, " to train (an epoch is ",
               samples_of_epoch_, " samples of ", context_, "), ", tokens_ - training_tokens_,
               " to validate", targets, few_samples(samples_of_epoch_, samples_));
  }

  std::optional<TokenEntropy> entropy() const override {
    const int64_t kinds = token_bytes_ == 1 ? 256 : vocabulary_;
    if (kinds == 0 || kinds > TokenCounts::kMostKinds) return std::nullopt;
    TokenCounts counts(kinds);
    for_each_token(std::min(tokens_, kCountedBytes / token_bytes_),
                   [&](int64_t token, int64_t) { counts.add(token); });
    return counts.entropy();
  }

 private:
  /// What a text says of an input besides its tokens: all of them count, they are of one segment,
  /// and where they stand.
  static bool is_constant(const BatchField& field) {
    return field.role == BatchField::Role::input && field.type.shape.size() == 2 &&
           (field.name == "attention_mask" || field.name == "token_type_ids" ||
            field.name == "position_ids");
  }
  static void fill_constant(const BatchField& field, const Box& box, void* out) {
    const int64_t context = field.type.shape[1];
    for_box(field.type.shape, box, [&](int64_t index, int64_t i) {
      store_integer(out, field.type.dtype, i,
                    field.name == "attention_mask" ? 1
                    : field.name == "position_ids" ? index % context
                                                   : 0);
    });
  }

  void take_fields(const std::vector<BatchField>& fields) {
    const BatchField* input = nullptr;
    const BatchField* target = nullptr;
    for (const BatchField& field : fields) {
      if (is_constant(field)) continue;
      const bool integer = field.type.dtype == DType::i32 || field.type.dtype == DType::i64;
      const BatchField*& place = field.role == BatchField::Role::input ? input : target;
      SR_REQUIRE(
          integer && place == nullptr, invalid_input, "--data ", spec_,
          ": tokens give one integer input and one integer target, but the model also wants '",
          field.name, "' (", field.type, "); use npz:FILE");
      place = &field;
    }
    SR_REQUIRE(
        input != nullptr && input->type.shape.size() == 2 && element_count(input->type.shape) > 0,
        invalid_input, "--data ", spec_,
        ": tokens need an integer input of shape [samples, context], got ",
        input == nullptr ? "none" : str("'", input->name, "' ", input->type));
    input_ = input->name;
    samples_ = input->type.shape[0];
    context_ = input->type.shape[1];
    vocabulary_ = input->bound;
    if (target == nullptr) return;
    target_ = target->name;
    shift_ = target->shift;
    SR_REQUIRE(element_count(target->type.shape) == samples_ * context_, invalid_input, "--data ",
               spec_, ": target '", target->name, "' is ", target->type,
               ", wanted one token for each of ", input->type, " '", input->name, "'");
    if (target->bound > 0 && (vocabulary_ == 0 || target->bound < vocabulary_))
      vocabulary_ = target->bound;
  }

  /// A sample is context + 1 tokens. The validation part is at least one sample, if the file has
  /// two.
  void place_parts() {
    const int64_t sample = context_ + 1;
    SR_REQUIRE(tokens_ >= sample, invalid_input, file_.path(), ": ", tokens_,
               " tokens are too few for a context of ", context_, ", which needs ", sample);
    int64_t validation =
        static_cast<int64_t>(options_.validation_fraction * static_cast<double>(tokens_));
    if (options_.validation_fraction > 0) validation = std::max(validation, sample);
    if (options_.validation_fraction <= 0 || tokens_ < 2 * sample) validation = 0;
    SR_REQUIRE(tokens_ - validation >= sample, invalid_input, "--data ", spec_,
               ": --validation leaves ", tokens_ - validation, " of ", tokens_,
               " tokens to train on, fewer than the ", sample, " that a context of ", context_,
               " needs; lower it");
    training_tokens_ = tokens_ - validation;
    // Leaving out one sample lets the phase move by up to a context.
    samples_of_epoch_ = (training_tokens_ - 1) / context_;
    if (samples_of_epoch_ > 1) --samples_of_epoch_;
    if (validation == 0) return;
    const int64_t whole = (validation - 1) / context_;
    validation_batches_ = std::clamp(whole / samples_, int64_t{1},
                                     std::max<int64_t>(1, options_.max_validation_batches));
  }

  int64_t training_start(int64_t sample) const {
    const int64_t epoch = sample / samples_of_epoch_;
    const Permutation order(samples_of_epoch_, options_.seed, data_stream("order"),
                            static_cast<uint64_t>(epoch));
    const int64_t slack =
        std::min(context_ - 1, training_tokens_ - 1 - samples_of_epoch_ * context_);
    const RandomStream phases{options_.seed, data_stream("phase"), static_cast<uint64_t>(epoch)};
    const int64_t phase = phases.bits(0) % (slack + 1);
    return phase + order(sample % samples_of_epoch_) * context_;
  }

  /// Samples 0 … S-1 start evenly from the first to the last possible place.
  int64_t validation_start(int64_t sample) const {
    const int64_t last = validation_batches_ * samples_ - 1;
    const int64_t last_start = tokens_ - training_tokens_ - (context_ + 1);
    return training_tokens_ + (last == 0 ? 0 : sample * last_start / last);
  }

  void load(int64_t position, int64_t count, unsigned char* out) const {
    file_.read(position * token_bytes_, count * token_bytes_, out);
  }

  int64_t token(const unsigned char* tokens, int64_t i) const {
    const unsigned char* at = tokens + i * token_bytes_;
    if (token_bytes_ == 1) return *at;
    if (token_bytes_ == 2) {
      uint16_t value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    uint32_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }

  int64_t checked(int64_t value, int64_t position) const {
    SR_REQUIRE(vocabulary_ == 0 || value < vocabulary_, invalid_input, file_.path(), ": token ",
               value, " at position ", position, " is beyond the model's vocabulary of ",
               vocabulary_, "; tokenise the text for this model");
    return value;
  }

  void check_all() const {
    if (vocabulary_ == 0 || (token_bytes_ == 1 && vocabulary_ >= 256)) return;
    for_each_token(tokens_, [&](int64_t token, int64_t position) { checked(token, position); });
  }

  /// Calls f(token, position) for the first `count`.
  template <class F>
  void for_each_token(int64_t count, F f) const {
    constexpr int64_t kBlock = 1 << 18;
    std::vector<unsigned char> block(static_cast<size_t>(kBlock * token_bytes_));
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      const int64_t size = std::min(kBlock, count - begin);
      load(begin, size, block.data());
      for (int64_t i = 0; i < size; ++i) f(token(block.data(), i), begin + i);
    }
  }

  std::string spec_, input_, target_;
  DataFile file_;
  int token_bytes_;
  DataOptions options_;
  int64_t samples_ = 0, context_ = 0, vocabulary_ = 0, shift_ = 1;
  int64_t tokens_ = 0, training_tokens_ = 0, samples_of_epoch_ = 0, validation_batches_ = 0;
};

}  // namespace

std::unique_ptr<DataSource> open_tokens(const std::string& spec, const std::string& path,
                                        int token_bytes, std::vector<BatchField> fields,
                                        const DataOptions& options) {
  return std::make_unique<TokenSource>(spec, path, token_bytes, std::move(fields), options);
}

}  // namespace shardrun
