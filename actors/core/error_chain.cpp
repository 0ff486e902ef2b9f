#include "actors/core/error_chain.h"

#include <algorithm>

namespace troupe::actors {

ErrorChain ToChain(const Error& error) {
  ErrorChain chain;
  for (const Error* e = &error; e != nullptr && chain.size() < kErrorChainMax; e = e->cause()) {
    ErrorLink link{static_cast<uint8_t>(e->code), e->message, "", "", "", ""};
    if (e->origin) {
      link.type = e->origin->type;
      link.actor = e->origin->actor;
      link.node = e->origin->node;
      link.traceback = e->origin->traceback;
    }
    chain.push_back(std::move(link));
  }
  return chain;
}

Error FromChain(const ErrorChain& chain) {
  std::shared_ptr<const Error> cause;
  const auto kept = static_cast<ptrdiff_t>(std::min(chain.size(), kErrorChainMax));
  for (auto link = chain.rend() - kept; link != chain.rend(); ++link) {
    const bool known = link->code > 0 && link->code <= static_cast<uint8_t>(ErrorCode::kMismatch);
    Error error{known ? static_cast<ErrorCode>(link->code) : ErrorCode::kInternal, link->message};
    const bool bare = link->type.empty() && link->actor.empty() && link->node.empty() &&
                      link->traceback.empty() && cause == nullptr;
    if (!bare) {
      error.origin = std::make_shared<const ErrorOrigin>(
          ErrorOrigin{link->type, link->actor, link->node, link->traceback, cause});
    }
    cause = std::make_shared<const Error>(std::move(error));
  }
  return cause == nullptr ? Error{ErrorCode::kInternal, "an error without a reason"} : *cause;
}

}  // namespace troupe::actors
