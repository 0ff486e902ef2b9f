#include "actors/core/mailbox.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "actors/core/internal/saved_mailbox.h"
#include "runtime/wire.h"

namespace troupe::actors {
namespace {

ActorReply Refusal(const std::string& actor, uint64_t number) {
  return {
      actor, number,
      ToChain(Error{ErrorCode::kBackpressure, "the actor's mailbox is full; call it again later"}),
      ""};
}

}  // namespace

// Who is next of its session gets into an empty queue however large, else it would wait for ever
// for room that the calls held behind it take.
bool Mailbox::Fits(size_t bytes, bool next) const {
  const bool alone = next ? queue_.empty() : bytes_ == 0;
  return queue_.size() < limits_.depth && (alone || bytes_ + bytes <= limits_.bytes);
}

Mailbox::Slot& Mailbox::At(Session& session, uint64_t number) {
  while (number - session.base >= session.slots.size()) session.slots.emplace_back();
  return session.slots[number - session.base];
}

// Nothing below matters to the caller any more; what of it has not run does not have to.
void Mailbox::Confirm(Session& session, uint64_t base) {
  while (session.base < base) {
    if (session.slots.empty()) {
      session.base = base;
      break;
    }
    Slot& slot = session.slots.front();
    if (slot.state == State::kQueued || slot.state == State::kHeld)
      bytes_ -= slot.call.arguments.size();
    if (slot.state == State::kHeld) --session.held;
    if (slot.state == State::kRunning) --session.running;
    session.slots.pop_front();
    ++session.base;
  }
  session.next = std::max(session.next, session.base);
}

Mailbox::Answer Mailbox::Offer(Time now, const std::string& caller, ActorCall call) {
  Answer answer;
  auto found = sessions_.find(caller);
  if (found == sessions_.end()) {
    if (sessions_.size() >= kSessionsMax) {
      answer.full = call.number;
      return answer;
    }
    found = sessions_.emplace(caller, Session{}).first;
    found->second.base = found->second.next = call.base;
  }
  Session& session = found->second;
  session.heard = now;
  Confirm(session, call.base);
  Release(found->first, session, answer);  // The base may have passed a gap.
  const uint64_t number = call.number;
  if (number < session.base) return answer;  // Settled and confirmed long ago.
  const bool far = number > session.next && number - session.next > kHeldMax;
  if (far || number - session.base >= kUnconfirmedMax) {
    answer.full = number;
    return answer;
  }
  Slot& slot = At(session, number);
  if (slot.state == State::kSettled && !slot.held_back) answer.replies.push_back(slot.reply);
  if (slot.state != State::kAbsent) return answer;
  if (number > session.next) {
    if (session.held >= kHeldMax || !Fits(call.arguments.size(), false)) {
      answer.full = number;
      return answer;
    }
    for (uint64_t n = std::max(session.next, session.asked); n < number; ++n) {
      if (At(session, n).state == State::kAbsent) answer.missing.push_back(n);
    }
    session.asked = number;
  }
  Slot& taken = At(session, number);  // Looking for gaps may have moved the slots.
  taken.state = State::kHeld;
  taken.deadline =
      call.timeout_ms == 0
          ? Time::Never()
          : now + milliseconds(static_cast<int64_t>(std::min(call.timeout_ms, uint64_t{1} << 40)));
  bytes_ += call.arguments.size();
  ++session.held;
  taken.call = std::move(call);
  Release(found->first, session, answer);
  return answer;
}

// Moves what is held and next in order to the queue.
void Mailbox::Release(const std::string& caller, Session& session, Answer& answer) {
  while (session.next - session.base < session.slots.size()) {
    Slot& slot = session.slots[session.next - session.base];
    if (slot.state == State::kSettled) {
      ++session.next;
      continue;
    }
    if (slot.state != State::kHeld) return;
    const size_t size = slot.call.arguments.size();
    --session.held;
    bytes_ -= size;
    if (slot.call.method.empty()) {  // Given up by its caller.
      slot.state = State::kSettled;
      slot.reply = {actor_, session.next, {}, "", false};
      answer.replies.push_back(slot.reply);
    } else if (Fits(size, true)) {
      slot.state = State::kQueued;
      bytes_ += size;
      ++session.entries;
      Queued queued;
      queued.caller = &caller;
      queued.number = session.next;
      queue_.push_back(std::move(queued));
      answer.work = true;
    } else if (limits_.overflow == Overflow::kRefuse) {
      slot.state = State::kSettled;
      slot.reply = Refusal(actor_, session.next);
      slot.call = {};
      answer.replies.push_back(slot.reply);
    } else {
      slot = Slot{};
      answer.full = session.next;
      if (!session.refused) ++refused_;
      session.refused = true;
      return;
    }
    ++session.next;
  }
}

Status Mailbox::OfferLocal(Work work) {
  if (!Fits(work.arguments.size(), true)) {
    return Error{ErrorCode::kBackpressure, "the actor's mailbox is full; call it again later"};
  }
  bytes_ += work.arguments.size();
  Queued queued;
  queued.number = work.number;
  queued.local = std::move(work);
  queue_.push_back(std::move(queued));
  return Status::Ok();
}

std::optional<Mailbox::Work> Mailbox::Next(Time now, std::vector<Work>& late) {
  while (!queue_.empty()) {
    Queued queued = std::move(queue_.front());
    queue_.pop_front();
    Work work = std::move(queued.local);
    if (queued.caller != nullptr) {
      Session& session = sessions_.at(*queued.caller);
      --session.entries;
      if (queued.number < session.base) continue;
      Slot& slot = At(session, queued.number);
      slot.state = State::kRunning;
      ++session.running;
      work = {*queued.caller,
              queued.number,
              std::move(slot.call.method),
              std::move(slot.call.arguments),
              slot.deadline,
              nullptr};
      slot.call = {};
    }
    bytes_ -= work.arguments.size();
    if (work.deadline > now) return work;
    late.push_back(std::move(work));
  }
  return std::nullopt;
}

void Mailbox::Settle(const Work& work, ActorReply reply, bool held_back) {
  if (work.caller.empty()) return;
  const auto found = sessions_.find(work.caller);
  if (found == sessions_.end() || work.number < found->second.base) return;
  Slot& slot = At(found->second, work.number);
  slot.state = State::kSettled;
  slot.reply = std::move(reply);
  slot.held_back = held_back;
  --found->second.running;
}

std::vector<std::pair<std::string, ActorReply>> Mailbox::Publish(
    const std::vector<std::pair<std::string, uint64_t>>& calls) {
  std::vector<std::pair<std::string, ActorReply>> replies;
  for (const auto& [caller, number] : calls) {
    const auto found = sessions_.find(caller);
    if (found == sessions_.end() || number < found->second.base) continue;
    Slot& slot = At(found->second, number);
    slot.held_back = false;
    replies.emplace_back(caller, slot.reply);
  }
  return replies;
}

Mailbox::Answer Mailbox::OnCheck(Time now, const std::string& caller, const ActorCheck& check) {
  Answer answer;
  const auto found = sessions_.find(caller);
  if (found == sessions_.end()) {
    answer.missing = check.numbers;
    return answer;
  }
  Session& session = found->second;
  session.heard = now;
  Confirm(session, check.base);
  Release(found->first, session, answer);
  for (const uint64_t number : check.numbers) {
    if (number < session.base) continue;
    const bool known = number - session.base < session.slots.size();
    const Slot* slot = known ? &session.slots[number - session.base] : nullptr;
    if (slot == nullptr || slot->state == State::kAbsent) {
      answer.missing.push_back(number);
    } else if (slot->state == State::kSettled && !slot->held_back) {
      answer.replies.push_back(slot->reply);
    }
  }
  return answer;
}

std::optional<Mailbox::Work> Mailbox::Withdraw(const std::string& caller, uint64_t number) {
  const auto queued = std::find_if(queue_.begin(), queue_.end(), [&](const Queued& q) {
    return q.number == number && (q.caller == nullptr ? caller.empty() : *q.caller == caller);
  });
  if (queued == queue_.end()) return std::nullopt;
  Work work = std::move(queued->local);
  if (queued->caller != nullptr) {
    Session& session = sessions_.at(caller);
    if (number < session.base) return std::nullopt;
    --session.entries;
    ++session.running;  // Until it is settled, which its withdrawer does.
    Slot& slot = At(session, number);
    slot.state = State::kRunning;
    work = {caller,        number, std::move(slot.call.method), std::move(slot.call.arguments),
            slot.deadline, nullptr};
    slot.call = {};
  }
  bytes_ -= work.arguments.size();
  queue_.erase(queued);
  return work;
}

std::vector<std::string> Mailbox::TakeRooms() {
  std::vector<std::string> rooms;
  const bool room = queue_.size() <= limits_.depth / 2 && bytes_ <= limits_.bytes / 2;
  if (refused_ == 0 || !room) return rooms;
  for (auto& [caller, session] : sessions_) {
    if (std::exchange(session.refused, false)) rooms.push_back(caller);
  }
  refused_ = 0;
  return rooms;
}

std::vector<Mailbox::Work> Mailbox::Clear() {
  std::vector<Work> all;
  while (std::optional<Work> work = Next(Time{std::numeric_limits<int64_t>::min()}, all))
    all.push_back(std::move(*work));
  return all;
}

void Mailbox::Forget(Time now) {
  std::erase_if(sessions_, [&](const auto& entry) {
    const Session& session = entry.second;
    const bool idle = session.running + session.entries == 0 && now > session.heard + kSessionIdle;
    if (!idle) return false;
    for (const Slot& slot : session.slots) {
      if (slot.state == State::kHeld) bytes_ -= slot.call.arguments.size();
    }
    if (session.refused) --refused_;
    return true;
  });
}

std::string Mailbox::Save() const {
  SavedMailbox saved;
  for (const auto& [caller, session] : sessions_) {
    SavedSession one{caller, session.base, {}};
    for (const Slot& slot : session.slots) {
      if (slot.state == State::kSettled) one.replies.push_back(slot.reply);
    }
    saved.sessions.push_back(std::move(one));
  }
  return wire::Encode(kMailboxState, saved);
}

Status Mailbox::Restore(Time now, const std::string& bytes) {
  Result<SavedMailbox> saved = wire::Decode<SavedMailbox>(kMailboxState, bytes);
  if (!saved.ok()) return saved.error().WithContext("the saved mailbox");
  for (SavedSession& one : saved->sessions) {
    Session& session = sessions_[one.caller];
    session.base = session.next = one.base;
    session.heard = now;
    for (ActorReply& reply : one.replies) {
      if (reply.number < one.base || reply.number - one.base >= kWindowCallsMax)
        return Error{ErrorCode::kCorrupt, "the saved mailbox holds a reply out of its range"};
      Slot& slot = At(session, reply.number);
      slot.state = State::kSettled;
      slot.reply = std::move(reply);
    }
  }
  return Status::Ok();
}

}  // namespace troupe::actors
