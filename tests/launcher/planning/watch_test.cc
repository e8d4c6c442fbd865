// Figures that something disturbed are taken again, by a clock and a machine that are made up.
#include "measure/watch.h"

#include <gtest/gtest.h>

#include <vector>

namespace shardrun {
namespace {

/// Work takes as many times longer as `slow` says at the time; of a reference of 8 ms all but the
/// waiting is reported.
struct Machine {
  double now = 0;
  std::function<double(double now)> slow = [](double) { return 1.0; };
  bool waits = true;  // what disturbs takes the core, and does not slow it down
  int references = 0;

  double work(double seconds) {
    const double taken = seconds * slow(now);
    now += taken;
    return taken;
  }
  Watch watch(double patience = 0) {
    return Watch(
        [this] {
          ++references;
          const double taken = work(8e-3);
          return Reference{taken, waits ? 8e-3 : taken};
        },
        [this] { return now; }, patience);
  }
  /// `count` figures of 10 ms each.
  std::vector<const double*> take(Watch& watch, int count) {
    std::vector<const double*> out;
    for (int i = 0; i < count; ++i) out.push_back(&watch.take([this] { return work(10e-3); }));
    return out;
  }
};

double most(const std::vector<const double*>& figures) {
  double out = 0;
  for (const double* figure : figures) out = std::max(out, *figure);
  return out;
}

TEST(Watch, LeavesAQuietMachineAlone) {
  Machine machine;
  Watch watch = machine.watch();
  machine.take(watch, 300);
  const double end = machine.now;
  watch.repeat(end + 100);
  EXPECT_LT(machine.now, end + 0.1);  // a reference
  EXPECT_EQ(watch.disturbance().disturbed, 0U);
  EXPECT_EQ(watch.disturbance().text(), "");
  EXPECT_LT(8e-3 * machine.references, 0.07 * machine.now);
}

TEST(Watch, TakesDisturbedFiguresAgain) {
  for (const bool waits : {true, false}) {
    Machine machine;
    machine.waits = waits;
    machine.slow = [](double now) { return now > 1 && now < 2 ? 1.6 : 1; };
    Watch watch = machine.watch();
    const auto figures = machine.take(watch, 300);
    EXPECT_NEAR(most(figures), 16e-3, 1e-9);
    const double end = machine.now;
    watch.repeat(end + 100);
    EXPECT_NEAR(most(figures), 10e-3, 1e-9);
    EXPECT_GT(machine.now - end, 0.5);  // some 70 of them
    EXPECT_LT(machine.now - end, 1.5);  // not all 300
    EXPECT_EQ(watch.disturbance().disturbed, 0U);
  }
}

/// The first reference is slow, and only a later one tells.
TEST(Watch, FindsOutLaterThatItBeganDisturbed) {
  Machine machine;
  machine.waits = false;
  machine.slow = [](double now) { return now < 2 ? 1.6 : 1; };
  Watch watch = machine.watch();
  const auto figures = machine.take(watch, 300);
  watch.repeat(machine.now + 100);
  EXPECT_NEAR(most(figures), 10e-3, 1e-9);
}

TEST(Watch, PutsOffWhatIsDisturbedForAWhile) {
  Machine machine;
  machine.slow = [](double now) { return now > 1 && now < 2 ? 1.6 : 1; };
  Watch patient = machine.watch(5);
  machine.take(patient, 300);
  EXPECT_LT(machine.now, 4.4);               // 3 s of figures, 1 of waiting, and the references
  EXPECT_NEAR(patient.waited(), 0.85, 0.1);  // it takes a stretch to notice
  EXPECT_LT(patient.disturbance().disturbed, 20U);
  machine.now = 0;
  Watch hasty = machine.watch(0.5);
  machine.take(hasty, 300);
  EXPECT_NEAR(hasty.waited(), 0.5, 0.02);
  EXPECT_GT(hasty.disturbance().disturbed, 20U);
}

/// Quiet comes a second after all was measured once.
TEST(Watch, WaitsForQuiet) {
  Machine machine;
  double quiet = 0;
  machine.slow = [&](double now) { return now > 1 && (quiet == 0 || now < quiet) ? 2 : 1; };
  Watch watch = machine.watch();
  const auto figures = machine.take(watch, 300);
  quiet = machine.now + 1;
  watch.repeat(machine.now + 100);
  EXPECT_NEAR(most(figures), 10e-3, 1e-9);
  EXPECT_LT(machine.now, quiet + 5);
}

TEST(Watch, SaysWhatStaysDisturbed) {
  Machine machine;
  machine.slow = [](double now) { return now > 1.505 ? 1.6 : 1; };
  Watch watch = machine.watch();
  machine.take(watch, 200);
  const double end = machine.now;
  watch.repeat(end + 2);
  EXPECT_LT(machine.now, end + 2.1);  // bounded
  const Disturbance left = watch.disturbance();
  EXPECT_EQ(left.figures, 200U);
  EXPECT_GT(left.disturbed, 50U);
  EXPECT_LT(left.disturbed, 80U);
  EXPECT_EQ(left.text(), std::to_string(left.disturbed) +
                             " of 200 figures were taken while something else slowed the machine "
                             "down up to 1.6 times; repeat 'shardrun calibrate' while nothing else "
                             "runs");
  Disturbance sum = left;
  sum += Disturbance{10, 2, 3.04};
  EXPECT_EQ(sum.disturbed, left.disturbed + 2);
  EXPECT_EQ(sum.figures, 210U);
  EXPECT_NE(sum.text().find("up to 3 times"), std::string::npos) << sum.text();
}

/// Others measured the same reference while the machine was quiet.
TEST(Watch, LearnsFromOthers) {
  Machine machine;
  machine.waits = false;
  machine.slow = [](double) { return 1.5; };
  Watch watch = machine.watch();
  machine.take(watch, 20);
  watch.repeat(machine.now + 1);
  EXPECT_EQ(watch.disturbance().disturbed, 0U);  // nothing to compare with
  watch.learn(8e-3);
  EXPECT_EQ(watch.disturbance().disturbed, 20U);
}

TEST(Watch, KeepsNothingOfWhatFails) {
  Machine machine;
  Watch watch = machine.watch();
  EXPECT_THROW(watch.take([]() -> double { throw 1; }), int);
  machine.take(watch, 1);
  EXPECT_EQ(watch.disturbance().figures, 1U);
}

}  // namespace
}  // namespace shardrun
