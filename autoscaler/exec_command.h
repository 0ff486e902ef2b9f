// Runs a program for one answer: text in at its standard input, text out at its standard output.
//
// Thread: any; blocks up to the limit. Nothing that the program has started and left running is
// touched if it ends by itself: it may have started a node.
// Limits: kExecReplyBytesMax of what it prints, kExecLogBytesMax of what it logs (the end of it).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe {

inline constexpr size_t kExecReplyBytesMax = size_t{8} << 20;
inline constexpr size_t kExecLogBytesMax = 4096;

struct ExecCommand {
  std::vector<std::string> argv;
  std::map<std::string, std::string> env;
  std::string folder;            // Where it runs; empty: here.
  Duration limit = seconds(30);  // Then it is killed, with its process group.
};

struct ExecReply {
  int code = 0;     // 128 and the number if a signal has ended it.
  std::string out;  // Standard output, whole.
  std::string log;  // The end of standard error.
};

// kNotFound: there is no such program. kDeadlineExceeded: it was killed; its log is in the message.
// kResourceExhausted: it printed too much.
[[nodiscard]] Result<ExecReply> RunExecCommand(const ExecCommand& command, std::string_view input);

}  // namespace troupe
