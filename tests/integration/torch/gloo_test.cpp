// Collectives over Gloo links in a process that has LibTorch loaded, whose distributed part uses a
// Gloo as well: there must be one Gloo behind our links, and it must work.
#include <dlfcn.h>
#include <torch/types.h>

#include "tests/integration/collective_groups/communicator_world.h"

namespace troupe::groups {
namespace {

TEST(GlooBesideLibTorch, OurLinksUseTheLibraryThatTheyWereCompiledFor) {
  // gloo::transport::tcp::CreateDevice, as our links call it.
  void* const create = ::dlsym(RTLD_DEFAULT, "_ZN4gloo9transport3tcp12CreateDeviceERKNS1_4attrE");
  ASSERT_NE(create, nullptr);
  Dl_info where{};
  ASSERT_NE(::dladdr(create, &where), 0);
  EXPECT_NE(std::string(where.dli_fname).find("libgloo.so.0"), std::string::npos)
      << where.dli_fname;
}

TEST(GlooBesideLibTorch, CollectivesOverLinksWork) {
  const at::Tensor warm = torch::ones({64, 64}).mm(torch::ones({64, 64}));  // LibTorch at work.
  ASSERT_EQ(warm[0][0].item<float>(), 64.0F);
  World world(Kind::kGloo, 3);
  world.ExpectSums();
  world.ExpectSums(200'000);  // A ring.
  world.Lose(1);
  world.Relink();
  world.Begin();
  world.ExpectSums();
}

}  // namespace
}  // namespace troupe::groups
