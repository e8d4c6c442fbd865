// The vectorisable functions against the library's in double, near and far, and where they end.
#include "kernels/cpu/functions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace shardrun::cpu {
namespace {

struct Case {
  const char* name;
  float (*got)(float);
  double (*want)(double);
  double low, high;
  double error = 4;  // ulp, of the value or of `least` where that is larger
  double least = 1e-6;
};

double softplus_of(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }
double mish_of(double x) { return x * std::tanh(softplus_of(x)); }

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"exp", exp, std::exp, -87, 88},
      {"expm1", expm1, std::expm1, -80, 80, 8},
      {"log", log, std::log, 1e-30, 1e30},
      {"log1p_positive", log1p_positive, std::log1p, 0, 1e6},
      {"softplus", softplus, softplus_of, -80, 80, 4, 1e-30},
      {"mish", mish, mish_of, -80, 80, 4, 1e-30},
      {"tanh", tanh, std::tanh, -12, 12, 8},
      {"erf", erf, std::erf, -6, 6, 8},
      {"sin", sin, std::sin, -7, 7},
      {"cos", cos, std::cos, -7, 7},
      {"sin_far", sin, std::sin, -kMostCircular, kMostCircular, 8, 1e-4},
      {"cos_far", cos, std::cos, -kMostCircular, kMostCircular, 8, 1e-4},
      {"tan", tan, std::tan, -7, 7, 8},
      {"asin", asin, std::asin, -1, 1},
      {"acos", acos, std::acos, -1, 1},
      {"atan", atan, std::atan, -60, 60},
      {"sinh", sinh, std::sinh, -88, 88, 12},
      {"cosh", cosh, std::cosh, -88, 88, 12},
      {"asinh", asinh, std::asinh, -1e12, 1e12},
      {"acosh", acosh, std::acosh, 1, 1e12},
      {"atanh", atanh, std::atanh, -0.9999, 0.9999, 6},
  };
  return all;
}

class Functions : public testing::TestWithParam<size_t> {};

TEST_P(Functions, StayNearTheLibrary) {
  const Case& c = cases()[GetParam()];
  std::mt19937_64 rng(1);
  double worst = 0, at = 0;
  const auto look = [&](double x) {
    const auto f = static_cast<float>(x);
    if (f < c.low || f > c.high) return;
    const double want = c.want(f), got = c.got(f);
    const double ulp = std::max(std::fabs(want), c.least) * 0x1p-23;
    const double error = std::fabs(got - want) / ulp;
    if (!(error <= worst)) worst = error, at = f;
  };
  std::uniform_real_distribution<double> even(c.low, c.high), exponent(-20, 20), sign(-1, 1);
  for (int i = 0; i < 200000; ++i) {
    look(even(rng));
    look(std::copysign(std::exp2(exponent(rng)), sign(rng)));
    look(c.low + std::exp2(exponent(rng)));
  }
  EXPECT_LE(worst, c.error) << c.name << " at " << at << ": " << c.got(static_cast<float>(at))
                            << ", wanted " << c.want(at);
  EXPECT_TRUE(std::isnan(c.got(std::numeric_limits<float>::quiet_NaN()))) << c.name;
}

INSTANTIATE_TEST_SUITE_P(All, Functions, testing::Range<size_t>(0, cases().size()),
                         [](const auto& info) { return cases()[info.param].name; });

bool same(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

TEST(Functions, PowerIsTheLibrarys) {
  std::mt19937_64 rng(2);
  std::uniform_real_distribution<float> exponent(-30, 30), y(-6, 6);
  for (int i = 0; i < 500000; ++i) {
    const float whole = std::round(y(rng)), sign = whole != 0 && i % 4 == 0 ? -1.0f : 1.0f;
    const float base = sign * std::exp2(exponent(rng)), power = i % 2 == 0 ? whole : y(rng);
    const double want = std::pow(static_cast<double>(base), static_cast<double>(power));
    const double got = pow(base, power);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << base << " to " << power;
    } else if (std::fabs(want) < 3.4e38) {
      EXPECT_LE(std::fabs(got - want), std::max(std::fabs(want), 1.2e-38) * 0x1p-23)
          << base << " to " << power;
    }
  }
  const float inf = std::numeric_limits<float>::infinity(), nan = NAN;
  const std::vector<float> ends = {0.0f, 1e-45f, 1e-40f, 0.5f,  1.0f,       2.0f, 2.5f,
                                   3.0f, 255.0f, 1e10f,  3e38f, 8388609.0f, inf};
  for (const float a : ends) {
    for (const float b : ends) {
      for (const float x : {a, -a, nan}) {
        for (const float p : {b, -b, nan})
          EXPECT_TRUE(same(pow(x, p), std::pow(x, p)))
              << x << " to " << p << ": " << pow(x, p) << ", wanted " << std::pow(x, p);
      }
    }
  }
}

TEST(Functions, RemaindersAreExact) {
  std::mt19937_64 rng(3);
  std::uniform_real_distribution<float> exponent(-14, 13), sign(-1, 1), part(1, 2);
  for (int i = 0; i < 500000; ++i) {
    const auto draw = [&] {
      return std::copysign(std::exp2(std::round(exponent(rng))) * part(rng), sign(rng));
    };
    const float b = draw(), a = i % 3 == 0 ? b * std::round(1000 * part(rng)) : draw();
    EXPECT_TRUE(same(fmod(a, b), std::fmod(a, b))) << a << " by " << b << ": " << fmod(a, b);
  }
}

TEST(Functions, EndWhereTheLibrarysDo) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sin(0.0f), 0.0f);
  EXPECT_EQ(cos(0.0f), 1.0f);
  EXPECT_EQ(atan(inf), std::atan(inf));
  EXPECT_EQ(atan(-inf), std::atan(-inf));
  EXPECT_EQ(sinh(inf), inf);
  EXPECT_EQ(sinh(-inf), -inf);
  EXPECT_EQ(sinh(89.5f), inf);
  EXPECT_TRUE(std::isfinite(sinh(89.0f)));
  EXPECT_EQ(cosh(-inf), inf);
  EXPECT_TRUE(std::isfinite(cosh(-89.0f)));
  EXPECT_EQ(asinh(-inf), -inf);
  EXPECT_EQ(acosh(inf), inf);
  EXPECT_EQ(acosh(1.0f), 0.0f);
  EXPECT_EQ(atanh(1.0f), inf);
  EXPECT_EQ(atanh(-1.0f), -inf);
  for (const float beyond : {1.5f, -1.5f, inf, -inf}) {
    EXPECT_TRUE(std::isnan(asin(beyond))) << beyond;
    EXPECT_TRUE(std::isnan(acos(beyond))) << beyond;
    EXPECT_TRUE(std::isnan(atanh(beyond))) << beyond;
  }
  EXPECT_TRUE(std::isnan(acosh(0.5f)));
  EXPECT_TRUE(std::isnan(acosh(-1e8f)));
  EXPECT_TRUE(std::isnan(acosh(-inf)));
  for (float (*odd)(float) : {asin, atan, sinh, asinh, atanh})
    EXPECT_TRUE(std::signbit(odd(-0.0f)));
}

}  // namespace
}  // namespace shardrun::cpu
