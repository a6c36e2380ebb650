#include "outrider/speculate/row_cost.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

void LearnOften(RowCost& cost, double rows, double seconds) {
  for (int i = 0; i < 40; ++i) cost.Learn(rows, seconds);
}

TEST(RowCostTest, NothingIsKnownAtFirstAndOnePointMeansProportion) {
  RowCost cost;
  EXPECT_EQ(cost.Seconds(8), 0);
  cost.Learn(8, 4);
  EXPECT_DOUBLE_EQ(cost.Seconds(8), 4);
  EXPECT_DOUBLE_EQ(cost.Seconds(2), 1);
  EXPECT_DOUBLE_EQ(cost.Seconds(16), 8);
}

TEST(RowCostTest, LinesBetweenPointsAndTheLastSlopeBeyond) {
  RowCost cost;
  LearnOften(cost, 1, 10);
  LearnOften(cost, 4, 10);  // up to here rows are free
  LearnOften(cost, 16, 40);
  EXPECT_NEAR(cost.Seconds(2), 10, 1e-6);
  EXPECT_NEAR(cost.Seconds(10), 25, 0.1);
  EXPECT_NEAR(cost.Seconds(32), 80, 0.5);
}

TEST(RowCostTest, FewerRowsNeverTakeLonger) {
  RowCost cost;
  LearnOften(cost, 8, 50);  // measured while something else ran
  LearnOften(cost, 16, 20);
  EXPECT_NEAR(cost.Seconds(6), 20, 1e-6);
  EXPECT_NEAR(cost.Seconds(8), 20, 1e-6);
  EXPECT_NEAR(cost.Seconds(10), 20, 1e-6);
}

TEST(RowCostTest, OneDisturbedMeasurementHardlyCounts) {
  RowCost cost;
  LearnOften(cost, 4, 1);
  cost.Learn(4, 100);
  EXPECT_LT(cost.Seconds(4), 1.05);
}

TEST(RowCostTest, ScaledCostsAreAllSoManyTimesAsLong) {
  RowCost cost;
  cost.Scale(2);
  EXPECT_EQ(cost.Seconds(4), 0);
  LearnOften(cost, 2, 1);
  LearnOften(cost, 16, 3);
  const double between = cost.Seconds(9);
  const double beyond = cost.Seconds(40);
  cost.Scale(2);
  EXPECT_NEAR(cost.Seconds(9), 2 * between, 1e-9);
  EXPECT_NEAR(cost.Seconds(40), 2 * beyond, 1e-9);
}

TEST(RowCostTest, AFastMeasurementOfWhatIsInDoubtIsOneOfTwo) {
  RowCost cost;
  LearnOften(cost, 4, 1);
  cost.Doubt();
  cost.Learn(4, 0.5);  // of first measurements, it would count alone
  EXPECT_NEAR(cost.Seconds(4), 0.75, 1e-9);
}

TEST(RowCostTest, TheFirstMeasurementsDoNotCountWhenTheyWereSlow) {
  RowCost cost;
  cost.Learn(4, 3);
  EXPECT_EQ(cost.Seconds(4), 3);
  cost.Learn(4, 1);
  EXPECT_EQ(cost.Seconds(4), 1);
  EXPECT_EQ(cost.Weight(4), 1);
  cost.Learn(4, 1.2);
  EXPECT_NEAR(cost.Seconds(4), 1.1, 1e-12);
  LearnOften(cost, 4, 1);
  cost.Learn(4, 0.5);  // by now the mean is worth more
  EXPECT_GT(cost.Seconds(4), 0.9);
  EXPECT_EQ(cost.Weight(64), 0);
}

TEST(RowCostTest, AChangeIsLearned) {
  RowCost cost;
  LearnOften(cost, 4, 1);
  LearnOften(cost, 4, 2);
  LearnOften(cost, 4, 2);
  EXPECT_NEAR(cost.Seconds(4), 2, 0.1);
}

TEST(RowCostTest, WhatIsOldGivesWayFaster) {
  RowCost fresh;
  LearnOften(fresh, 4, 1);
  RowCost old = fresh;
  for (int i = 0; i < 300; ++i) old.Learn(64, 16);
  fresh.Learn(4, 1.2);
  old.Learn(4, 1.2);
  EXPECT_GT(old.Seconds(4) - 1, 1.5 * (fresh.Seconds(4) - 1));
}

TEST(RowCostTest, SmallPartsAreBelievedWhenThereIsNothingElse) {
  RowCost cost;
  cost.Learn(16, 0.1, 0.04);
  EXPECT_EQ(cost.Seconds(16), 0.1);
  cost.Learn(8, 1);
  EXPECT_EQ(cost.Seconds(8), 1);
  EXPECT_EQ(cost.Seconds(16), 2);
  for (int i = 0; i < 2; ++i) cost.Learn(16, 1.6, 0.04);
  EXPECT_NEAR(cost.Seconds(16), 1.1, 1e-9);
}

TEST(RowCostTest, APartDoesNotSayThatWhatWasMeasuredBeforeWasSlow) {
  RowCost cost;
  cost.Learn(4, 3);
  cost.Learn(4, 1, 0.1);
  EXPECT_GT(cost.Seconds(4), 2.7);
  EXPECT_GT(cost.Weight(4), 1);
}

TEST(RowCostTest, AGuessDoesNotCountAsAMeasurement) {
  RowCost cost;
  LearnOften(cost, 4, 1);
  LearnOften(cost, 64, 16);
  cost.Learn(16, 10);
  EXPECT_EQ(cost.Seconds(16), 10);
  EXPECT_EQ(cost.Weight(16), 1);
}

TEST(RowCostTest, WhatIsInDoubtGivesWayAtOnce) {
  RowCost cost;
  LearnOften(cost, 4, 1);
  cost.Doubt();
  EXPECT_EQ(cost.Seconds(4), 1);
  EXPECT_EQ(cost.Weight(4), 1);
  cost.Learn(4, 3);
  EXPECT_EQ(cost.Seconds(4), 2);
}

TEST(RowCostTest, WhatIsInDoubtOfSomeRowsGivesWayThere) {
  RowCost cost;
  LearnOften(cost, 4, 1);
  LearnOften(cost, 64, 16);
  cost.Doubt(4);
  EXPECT_EQ(cost.Seconds(4), 1);
  cost.Learn(4, 2);
  EXPECT_GT(cost.Seconds(4), 1.9);
  EXPECT_GT(cost.Weight(64), 3);
}

TEST(RowCostTest, TheMostRowsAreThoseThatWereMeasuredWell) {
  RowCost cost;
  EXPECT_EQ(cost.MostRows(), 0);
  cost.Learn(8, 1, 0.1);
  EXPECT_EQ(cost.MostRows(), 8);
  LearnOften(cost, 4, 1);
  EXPECT_EQ(cost.MostRows(), 4);
  cost.Learn(64, 9, 0.01);
  EXPECT_EQ(cost.MostRows(), 4);
  cost.Learn(64, 9);
  EXPECT_EQ(cost.MostRows(), 64);
}

TEST(RowCostTest, AShareCountsLess) {
  RowCost cost;
  LearnOften(cost, 4, 1);
  cost.Learn(4, 1.2, 0.01);
  EXPECT_LT(cost.Seconds(4), 1.001);
}

}  // namespace
}  // namespace outrider
