// Session: a runtime as handles of C refer to it, also after its end.
//
// Thread: any.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "actors/api/cluster.h"

namespace troupe::capi {

class Session : public std::enable_shared_from_this<Session> {
 public:
  // `ours`: a driver's, which End ends; else that of a method.
  Session(Cluster runtime, bool ours) : runtime_(std::move(runtime)), ours_(ours) {}

  // While it lives, the runtime does, too.
  class Use {
   public:
    explicit Use(std::shared_ptr<Session> session) : session_(std::move(session)) {}
    Use(Use&& other) noexcept = default;
    Use& operator=(Use&& other) = delete;
    ~Use() {
      if (session_) session_->Leave();
    }
    [[nodiscard]] const std::shared_ptr<actors::ActorSystem>& system() const {
      return session_->system_;
    }

   private:
    std::shared_ptr<Session> session_;
  };
  // kCancelled: it has been shut down.
  [[nodiscard]] Result<Use> Enter();
  // Fails what is open, waits for those who use it, then ends the runtime. kDeadlineExceeded: they
  // are there yet; it may be asked again. kInvalidArgument: it is not ours.
  [[nodiscard]] Status End(Duration limit);

 private:
  void Leave();

  std::mutex mu_;
  std::condition_variable left_;
  std::optional<Cluster> runtime_;
  const std::shared_ptr<actors::ActorSystem> system_ = runtime_->system();
  const bool ours_;
  bool closed_ = false;
  size_t users_ = 0;
};

}  // namespace troupe::capi
