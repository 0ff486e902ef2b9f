// View: who is in a group in one epoch, in order of seniority.
//
// Rank is the position, so rank 0 is the oldest member. A member is one incarnation of an actor: a
// replacement under the same name is another member and younger. Local rank counts the members of
// the same host before me; cross rank counts the hosts (in order of their oldest member) before
// mine that have a member of my local rank.
// Thread: plain values.
// Limits: kGroupMembersMax members; a slot is a small integer that one live incarnation owns for
// data-plane links.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::groups {

inline constexpr uint32_t kGroupMembersMax = 64;

using Epoch = uint64_t;  // 0 means "none"; the first epoch is 1.

struct MemberId {
  std::string actor;
  uint64_t incarnation = 0;

  // "actor#incarnation": also the member's name on the transport.
  [[nodiscard]] std::string ToString() const { return actor + "#" + std::to_string(incarnation); }
  static std::optional<MemberId> Parse(const std::string& text);
  friend auto operator<=>(const MemberId&, const MemberId&) = default;
  template <class A>
  void Fields(A& a) {
    a(actor, incarnation);
  }
};

struct ViewMember {
  MemberId id;
  uint64_t seniority = 0;  // Join sequence number in the group, given once.
  uint32_t slot = 0;
  std::string host;
  std::string memory;    // Members with the same, non-empty value can share memory.
  uint64_t version = 0;  // Newest committed state.
  bool has_state = false;

  friend bool operator==(const ViewMember&, const ViewMember&) = default;
  template <class A>
  void Fields(A& a) {
    a(id, seniority, slot, host, memory, version, has_state);
  }
};

struct View {
  std::string group;
  Epoch epoch = 0;
  std::vector<ViewMember> members;
  std::string reason;

  friend bool operator==(const View&, const View&) = default;
  template <class A>
  void Fields(A& a) {
    a(group, epoch, members, reason);
  }
};

struct Topology {
  int rank = -1;
  int size = 0;
  int local_rank = 0;
  int local_size = 0;
  int cross_rank = 0;
  int cross_size = 0;
};

// Position of `id`, or -1.
[[nodiscard]] int RankOf(const View& view, const MemberId& id);
// Rank of the oldest member that holds the newest state; 0 if nobody holds any.
[[nodiscard]] int SourceRank(const View& view);
// Ranks that lack the newest state. If nobody holds any, everybody but the source.
[[nodiscard]] std::vector<int> RanksWithoutState(const View& view);
[[nodiscard]] Topology TopologyOf(const View& view, const MemberId& id);

}  // namespace troupe::groups
