// Adapter of spdlog: the only file that includes it.
#include "runtime/log.h"

#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <utility>

namespace troupe {
namespace {

constexpr size_t kLogFileBytesMax = size_t{32} << 20;
constexpr size_t kLogFilesMax = 3;

spdlog::level::level_enum ToSpd(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::level::level_enum LevelFromEnv() {
  const char* text = std::getenv("TROUPE_LOG_LEVEL");
  const std::string name = text == nullptr ? "warning" : text;
  if (name == "debug") return spdlog::level::debug;
  if (name == "info") return spdlog::level::info;
  if (name == "error") return spdlog::level::err;
  return spdlog::level::warn;
}

std::shared_ptr<spdlog::logger> MakeStderrLogger(std::string_view role) {
  auto logger = std::make_shared<spdlog::logger>(std::string(role),
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(LevelFromEnv());
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %L [%n] %v");
  return logger;
}

}  // namespace

void InitLogging(std::string_view role, const std::string& path) {
  auto logger = MakeStderrLogger(role);
  if (!path.empty()) {
    try {
      auto sink = std::make_shared<spdlog::sinks::rotating_file_sink_mt>(path, kLogFileBytesMax,
                                                                         kLogFilesMax);
      auto to_file = std::make_shared<spdlog::logger>(std::string(role), std::move(sink));
      to_file->set_level(std::min(LevelFromEnv(), spdlog::level::info));
      to_file->set_pattern("%Y-%m-%d %H:%M:%S.%e %L [%n] %v");
      to_file->flush_on(spdlog::level::info);
      // A write that fails later (disk full) is reported once on stderr; the process goes on.
      auto warned = std::make_shared<std::atomic<bool>>(false);
      to_file->set_error_handler([warned, fallback = logger](const std::string& why) {
        if (!warned->exchange(true))
          fallback->error("log file cannot be written, logging is lost: {}", why);
      });
      logger = std::move(to_file);
    } catch (const spdlog::spdlog_ex& e) {
      logger->error("cannot log to {}: {}; logging to stderr", path, e.what());
    }
  }
  spdlog::set_default_logger(logger);
}

void Log(LogLevel level, std::string_view message) {
  static const bool initialised = [] {
    if (spdlog::default_logger()->name().empty())
      spdlog::set_default_logger(MakeStderrLogger("troupe"));
    return true;
  }();
  (void)initialised;
  spdlog::default_logger_raw()->log(ToSpd(level), "{}", message);
}

}  // namespace troupe
