// Adapter of hiredis: the only file that includes it.
//
// hiredis 0.14 leaves a context dead after any time-out, so every failure drops the connection and
// the next call makes a new one. A reply may have been lost with it; every command here is safe to
// repeat.
#include <hiredis/hiredis.h>

#include <algorithm>
#include <csignal>
#include <vector>

#include "runtime/metrics.h"
#include "runtime/store.h"

namespace troupe {
namespace {

constexpr int kScanBatch = 500;

// KEYS[1] key, ARGV: has_expected, expected, value, ttl_ms.
constexpr const char* kCompareAndSetScript =
    "local v = redis.call('GET', KEYS[1]) "
    "if v ~= ARGV[3] then "
    "  if ARGV[1] == '1' and v ~= ARGV[2] then return 0 end "
    "  if ARGV[1] == '0' and v then return 0 end "
    "end "
    "if ARGV[4] == '0' then redis.call('SET', KEYS[1], ARGV[3]) "
    "else redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4]) end "
    "return 1";

timeval ToTimeval(Duration d) {
  const auto us = std::chrono::duration_cast<microseconds>(d).count();
  return {static_cast<time_t>(us / 1'000'000), static_cast<suseconds_t>(us % 1'000'000)};
}

// hiredis writes without MSG_NOSIGNAL, so a server that went away would end a process that does not
// ignore SIGPIPE. The signal is for the writing thread; it is held back and taken out here.
class HoldSigpipe {
 public:
  HoldSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    pending_before_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~HoldSigpipe() {
    constexpr timespec kNoWait{};
    if (!pending_before_) sigtimedwait(&pipe_, nullptr, &kNoWait);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  HoldSigpipe(const HoldSigpipe&) = delete;
  HoldSigpipe& operator=(const HoldSigpipe&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
  bool pending_before_ = false;
};

struct FreeContext {
  void operator()(redisContext* c) const { redisFree(c); }
};
struct FreeReply {
  void operator()(redisReply* r) const { freeReplyObject(r); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

class RedisStore final : public Store {
 public:
  explicit RedisStore(RedisOptions options) : options_(std::move(options)) {}

  Result<std::optional<std::string>> Get(std::string_view key) override {
    if (Status s = CheckSizes(key); !s.ok()) return s.error();
    Result<Reply> reply = Command({"GET", Full(key)});
    if (!reply.ok()) return reply.error();
    if ((*reply)->type == REDIS_REPLY_NIL) return std::optional<std::string>();
    return std::optional<std::string>(Text(**reply));
  }

  Status Put(std::string_view key, std::string_view value, Duration ttl) override {
    if (Status s = CheckSizes(key, value); !s.ok()) return s;
    std::vector<std::string> command{"SET", Full(key), std::string(value)};
    if (ttl != kNoExpiry) {
      command.emplace_back("PX");
      command.push_back(TtlMs(ttl));
    }
    Result<Reply> reply = Command(command);
    return reply.ok() ? Status::Ok() : Status(reply.error());
  }

  Status CompareAndSet(std::string_view key, const std::optional<std::string>& expected,
                       std::string_view value, Duration ttl) override {
    if (Status s = CheckSizes(key, value); !s.ok()) return s;
    Result<Reply> reply =
        Command({"EVAL", kCompareAndSetScript, "1", Full(key), expected ? "1" : "0",
                 expected.value_or(""), std::string(value), ttl == kNoExpiry ? "0" : TtlMs(ttl)});
    if (!reply.ok()) return reply.error();
    if ((*reply)->integer == 1) return Status::Ok();
    return Error{ErrorCode::kConflict, "the value changed meanwhile"};
  }

  Result<int64_t> Increment(std::string_view key, int64_t by) override {
    if (Status s = CheckSizes(key); !s.ok()) return s.error();
    Result<Reply> reply = Command({"INCRBY", Full(key), std::to_string(by)});
    if (!reply.ok()) {
      if (reply.error().message.find("not an integer") != std::string::npos) {
        return Error{ErrorCode::kInvalidArgument, "the value is not an integer"};
      }
      if (reply.error().message.find("would overflow") != std::string::npos) {
        return Error{ErrorCode::kInvalidArgument, "the value would leave 64 bits"};
      }
      return reply.error();
    }
    return static_cast<int64_t>((*reply)->integer);
  }

  Status Delete(std::string_view key) override {
    if (Status s = CheckSizes(key); !s.ok()) return s;
    Result<Reply> reply = Command({"DEL", Full(key)});
    return reply.ok() ? Status::Ok() : Status(reply.error());
  }

  Result<std::map<std::string, std::string>> List(std::string_view prefix) override {
    if (Status s = CheckSizes(prefix); !s.ok()) return s.error();
    Result<std::vector<std::string>> keys = Scan(prefix);
    if (!keys.ok()) return keys.error();
    std::map<std::string, std::string> found;
    for (size_t begin = 0; begin < keys->size(); begin += kScanBatch) {
      std::vector<std::string> command{"MGET"};
      const size_t end = std::min(keys->size(), begin + kScanBatch);
      command.insert(command.end(), keys->begin() + begin, keys->begin() + end);
      Result<Reply> reply = Command(command);
      if (!reply.ok()) return reply.error();
      for (size_t i = 0; i < (*reply)->elements; ++i) {
        const redisReply& value = *(*reply)->element[i];
        if (value.type == REDIS_REPLY_STRING) {
          found.emplace((*keys)[begin + i].substr(options_.key_prefix.size()), Text(value));
        }
      }
    }
    return found;
  }

  Result<size_t> DeletePrefix(std::string_view prefix) override {
    if (Status s = CheckSizes(prefix); !s.ok()) return s.error();
    Result<std::vector<std::string>> keys = Scan(prefix);
    if (!keys.ok()) return keys.error();
    size_t deleted = 0;
    for (size_t begin = 0; begin < keys->size(); begin += kScanBatch) {
      std::vector<std::string> command{"DEL"};
      command.insert(command.end(), keys->begin() + begin,
                     keys->begin() + std::min(keys->size(), begin + kScanBatch));
      Result<Reply> reply = Command(command);
      if (!reply.ok()) return reply.error();
      deleted += static_cast<size_t>((*reply)->integer);
    }
    return deleted;
  }

 private:
  [[nodiscard]] std::string Full(std::string_view key) const {
    return options_.key_prefix + std::string(key);
  }
  static std::string Text(const redisReply& reply) { return {reply.str, reply.len}; }
  static std::string TtlMs(Duration ttl) {
    return std::to_string(std::max<int64_t>(1, std::chrono::ceil<milliseconds>(ttl).count()));
  }

  static Status CheckSizes(std::string_view key, std::string_view value = {}) {
    if (key.empty() || key.size() > kStoreKeyBytesMax || value.size() > kStoreValueBytesMax) {
      return Error{ErrorCode::kInvalidArgument, "store key or value over its size limit"};
    }
    return Status::Ok();
  }

  [[nodiscard]] std::string Where() const {
    return options_.unix_socket.empty() ? options_.host + ":" + std::to_string(options_.port)
                                        : options_.unix_socket;
  }

  Status Connect() {
    const timeval timeout = ToTimeval(options_.connect_timeout);
    context_.reset(options_.unix_socket.empty()
                       ? redisConnectWithTimeout(options_.host.c_str(), options_.port, timeout)
                       : redisConnectUnixWithTimeout(options_.unix_socket.c_str(), timeout));
    if (context_ == nullptr || context_->err != 0) {
      const std::string why = context_ == nullptr ? "out of memory" : context_->errstr;
      context_.reset();
      return Error{ErrorCode::kUnavailable, "cannot reach Redis at " + Where() + ": " + why};
    }
    redisSetTimeout(context_.get(), ToTimeval(options_.command_timeout));
    if (!options_.password.empty()) {
      Result<Reply> reply = Send({"AUTH", options_.password});
      if (!reply.ok()) {
        context_.reset();
        return Error{ErrorCode::kPermissionDenied, "Redis at " + Where() + " refused the password"};
      }
    }
    return Status::Ok();
  }

  Result<Reply> Command(const std::vector<std::string>& words) {
    const Time begin = SteadyClock().Now();
    const Status connected = context_ == nullptr ? Connect() : Status::Ok();
    Result<Reply> reply = connected.ok() ? Send(words) : Result<Reply>(connected.error());
    metrics::Observe(metrics::Id::kStoreCalls, SteadyClock().Now() - begin);
    if (!reply.ok()) metrics::Add(metrics::Id::kStoreErrors, 1, ErrorCodeName(reply.error().code));
    return reply;
  }

  Result<Reply> Send(const std::vector<std::string>& words) {
    const HoldSigpipe hold;
    std::vector<const char*> argv;
    std::vector<size_t> lengths;
    for (const std::string& word : words) {
      argv.push_back(word.data());
      lengths.push_back(word.size());
    }
    Reply reply(static_cast<redisReply*>(redisCommandArgv(
        context_.get(), static_cast<int>(argv.size()), argv.data(), lengths.data())));
    if (reply == nullptr) {
      const std::string why = context_->errstr;
      context_.reset();
      return Error{ErrorCode::kUnavailable,
                   "Redis at " + Where() + " did not answer " + words[0] + ": " + why};
    }
    if (reply->type == REDIS_REPLY_ERROR) {
      const std::string text = Text(*reply);
      if (text.starts_with("LOADING") || text.starts_with("NOAUTH")) context_.reset();
      return Error{ErrorCode::kUnavailable,
                   "Redis at " + Where() + " answered " + words[0] + " with: " + text};
    }
    return reply;
  }

  Result<std::vector<std::string>> Scan(std::string_view prefix) {
    std::string pattern;
    for (const char c : Full(prefix)) {  // Glob characters of the prefix are meant literally.
      if (c == '*' || c == '?' || c == '[' || c == ']' || c == '\\') pattern.push_back('\\');
      pattern.push_back(c);
    }
    pattern.push_back('*');
    std::vector<std::string> keys;
    std::string cursor = "0";
    do {
      Result<Reply> reply =
          Command({"SCAN", cursor, "MATCH", pattern, "COUNT", std::to_string(kScanBatch)});
      if (!reply.ok()) return reply.error();
      cursor = Text(*(*reply)->element[0]);
      const redisReply& batch = *(*reply)->element[1];
      for (size_t i = 0; i < batch.elements; ++i) keys.push_back(Text(*batch.element[i]));
    } while (cursor != "0");
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());  // SCAN may repeat keys.
    return keys;
  }

  const RedisOptions options_;
  std::unique_ptr<redisContext, FreeContext> context_;
};

}  // namespace

std::unique_ptr<Store> MakeRedisStore(RedisOptions options) {
  return std::make_unique<RedisStore>(std::move(options));
}

}  // namespace troupe
