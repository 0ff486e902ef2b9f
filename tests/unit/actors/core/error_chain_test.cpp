#include "actors/core/error_chain.h"

#include <gtest/gtest.h>

#include "runtime/wire.h"

namespace troupe::actors {
namespace {

Error Caused(int depth) {
  Error error{ErrorCode::kUserError, "0"};
  for (int i = 1; i < depth; ++i) {
    error = Error{ErrorCode::kUserError, std::to_string(i),
                  std::make_shared<const ErrorOrigin>(
                      ErrorOrigin{"T", "A", "n", "tb", std::make_shared<const Error>(error)})};
  }
  return error;
}

size_t Depth(const Error& error) {
  size_t depth = 0;
  for (const Error* e = &error; e != nullptr; e = e->cause()) ++depth;
  return depth;
}

TEST(ErrorChainTest, AnErrorComesBackAsItWas) {
  const Error error = Caused(3);
  const Error back = FromChain(ToChain(error));
  EXPECT_EQ(back.ToString(), error.ToString());
  EXPECT_EQ(back.cause()->cause()->message, "0");
  EXPECT_EQ(back.origin->traceback, "tb");
  EXPECT_EQ(FromChain(ToChain(Error{ErrorCode::kFenced, "plain"})).origin, nullptr);
}

TEST(ErrorChainTest, OldCausesAreLeftOut) {
  EXPECT_EQ(ToChain(Caused(100)).size(), kErrorChainMax);
  EXPECT_EQ(ToChain(Caused(100))[0].message, "99");
}

// What comes over the wire may be longer than what we send, and nested errors end recursively.
TEST(ErrorChainTest, AChainOfAnyLengthIsCutToTheLimit) {
  EXPECT_EQ(Depth(FromChain(ErrorChain(500'000, ErrorLink{14, "x", "T", "", "", ""}))),
            kErrorChainMax);
}

TEST(ErrorChainTest, AnEmptyChainAndAnUnknownCodeAreInternalErrors) {
  EXPECT_EQ(FromChain({}).code, ErrorCode::kInternal);
  EXPECT_EQ(FromChain({{255, "from the future", "", "", "", ""}}).code, ErrorCode::kInternal);
  EXPECT_EQ(FromChain({{0, "no error is none", "", "", "", ""}}).code, ErrorCode::kInternal);
  EXPECT_EQ(FromChain({{18, "the last known", "", "", "", ""}}).code, ErrorCode::kMismatch);
}

}  // namespace
}  // namespace troupe::actors
