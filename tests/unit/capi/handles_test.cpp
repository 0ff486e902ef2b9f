#include "capi/internal/handles.h"

#include <gtest/gtest.h>

#include <set>

namespace troupe::capi {
namespace {

struct Opaque;

TEST(Handles, AHandleIsFoundUntilItIsTaken) {
  Handles<Opaque, int> handles("a number", 1);
  Opaque* const seven = handles.Add(std::make_shared<int>(7));
  ASSERT_NE(handles.Find(seven), nullptr);
  EXPECT_EQ(*handles.Find(seven), 7);
  EXPECT_EQ(*handles.Take(seven), 7);
  EXPECT_EQ(handles.Find(seven), nullptr);
  EXPECT_EQ(handles.Take(seven), nullptr) << "a second release is found out";
}

TEST(Handles, NoNumberIsUsedTwice) {
  Handles<Opaque, int> handles("a number", 1);
  std::set<Opaque*> seen;
  for (int i = 0; i < 1000; ++i) {
    Opaque* const handle = handles.Add(std::make_shared<int>(i));
    EXPECT_NE(handle, nullptr);
    EXPECT_TRUE(seen.insert(handle).second);
    EXPECT_EQ(*handles.Take(handle), i);
  }
}

TEST(Handles, ThoseOfOneKindAreUnknownToAnother) {
  Handles<Opaque, int> numbers("a number", 1);
  Handles<Opaque, int> others("another", 2);
  Opaque* const number = numbers.Add(std::make_shared<int>(1));
  (void)others.Add(std::make_shared<int>(2));
  EXPECT_EQ(others.Find(number), nullptr);
  EXPECT_EQ(others.Unknown(number).message,
            "this is no handle of another: it was released, or is of another kind");
  EXPECT_EQ(others.Unknown(nullptr).message, "this is no handle of another: it is NULL");
}

}  // namespace
}  // namespace troupe::capi
