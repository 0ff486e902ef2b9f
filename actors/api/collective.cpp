#include "actors/api/collective.h"

#include <utility>

#include "actors/api/future.h"
#include "actors/host/placing.h"

namespace troupe::actors {

Result<CollectiveStatus> AskCollective(const std::shared_ptr<ActorSystem>& system,
                                       CollectiveRequest request, Duration limit) {
  if (system->directory_client() == nullptr) return NoCluster();
  const Future<CollectiveStatus> answer;
  system->directory_client()->Collective(
      std::move(request), limit, [answer](auto status) { answer.Complete(std::move(status)); });
  return answer.Get(limit + seconds(1));
}

}  // namespace troupe::actors
