// What a driver refuses to hand to the head.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemons/client/driver_client.h"
#include "tests/integration/cluster.h"

namespace troupe::testing {
namespace {

using ::testing::HasSubstr;

TEST(SubmitTest, ARunThatIsTooLargeIsRefusedWithItsSizeAndCostsNothing) {
  daemons::DriverOptions options;
  options.with_node = false;
  Cluster cluster(options);
  JobSpec spec;
  spec.payload.resize(daemons::kRunBytesMax + 1);
  const Time begun = SteadyClock().Now();
  const Result<std::string> job = cluster.client().Submit(std::move(spec));
  ASSERT_FALSE(job.ok());
  EXPECT_EQ(job.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(job.error().message, HasSubstr("take 209715201 bytes when pickled, of at most"));
  EXPECT_LT(SteadyClock().Now() - begun, seconds(2)) << "it was sent";
  const Result<std::string> state = cluster.client().ClusterJson();
  ASSERT_TRUE(state.ok());
  EXPECT_THAT(*state, ::testing::Not(HasSubstr("job-")));
}

}  // namespace
}  // namespace troupe::testing
