#include "runtime/error.h"

#include <array>

namespace troupe {

std::string_view ErrorCodeName(ErrorCode code) {
  static constexpr std::array<std::string_view, 19> kNames = {"ok",
                                                              "invalid_argument",
                                                              "not_found",
                                                              "already_exists",
                                                              "deadline_exceeded",
                                                              "cancelled",
                                                              "unavailable",
                                                              "backpressure",
                                                              "peer_gone",
                                                              "epoch_changed",
                                                              "conflict",
                                                              "corrupt",
                                                              "permission_denied",
                                                              "resource_exhausted",
                                                              "user_error",
                                                              "drained",
                                                              "fenced",
                                                              "internal",
                                                              "mismatch"};
  const auto index = static_cast<size_t>(code);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string Error::ToString() const {
  std::string text(ErrorCodeName(code));
  if (!message.empty()) text.append(": ").append(message);
  if (origin == nullptr) return text;
  std::string place = origin->type;
  if (!origin->actor.empty()) place.append(place.empty() ? "" : " in ").append(origin->actor);
  if (!origin->node.empty()) place.append(" on node ").append(origin->node);
  if (!place.empty()) text.append(" [").append(place).append("]");
  if (origin->cause) text.append("; caused by ").append(origin->cause->ToString());
  return text;
}

Error Error::WithContext(std::string_view context) const {
  return Error{code, std::string(context) + ": " + message, origin};
}

const Error* Error::cause() const { return origin ? origin->cause.get() : nullptr; }

Error InvalidArgument(std::string message) {
  return Error{ErrorCode::kInvalidArgument, std::move(message)};
}

}  // namespace troupe
