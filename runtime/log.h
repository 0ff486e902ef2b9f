// Logging: one line per event, to stderr or a file, with the process's role. Text that comes from
// elsewhere is always an argument, never a format.
// Thread: any.
#pragma once

#include <sstream>
#include <string>
#include <string_view>

namespace troupe {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets role and destination. An empty path logs to stderr. A file that cannot be opened or written
// falls back to stderr with one warning, and the process goes on. TROUPE_LOG_LEVEL (debug, info,
// warning, error) sets the level; the default is warning.
void InitLogging(std::string_view role, const std::string& path = "");
void Log(LogLevel level, std::string_view message);

template <class... Parts>
void LogLine(LogLevel level, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  Log(level, text.str());
}
template <class... P>
void LogDebug(const P&... p) {
  LogLine(LogLevel::kDebug, p...);
}
template <class... P>
void LogInfo(const P&... p) {
  LogLine(LogLevel::kInfo, p...);
}
template <class... P>
void LogWarning(const P&... p) {
  LogLine(LogLevel::kWarning, p...);
}
template <class... P>
void LogError(const P&... p) {
  LogLine(LogLevel::kError, p...);
}

}  // namespace troupe
