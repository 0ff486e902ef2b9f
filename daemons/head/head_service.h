// HeadService: the shell around HeadCore: frames, the loop's time and what the store says go in;
// what comes out is sent, kept or logged.
//
// Thread: the transport's loop, but for the constructor and destructor.
// Owns: the core, the coordinators of all groups, what is on its way to and from the store.
#pragma once

#include <atomic>
#include <string>
#include <utility>

#include "collective_groups/membership/group_service.h"
#include "daemons/head/core/head_core.h"
#include "daemons/head/records.h"
#include "daemons/head/state_loads.h"
#include "daemons/head/state_saves.h"
#include "runtime/lane.h"
#include "runtime/loop_scope.h"
#include "runtime/metrics.h"
#include "runtime/store.h"
#include "runtime/transport.h"

namespace troupe::daemons {

class HeadService {
 public:
  HeadService(Transport* transport, Lane* store_lane, Store* store, Spool* spool,
              const HeadOptions& options);
  ~HeadService();
  HeadService(const HeadService&) = delete;
  HeadService& operator=(const HeadService&) = delete;
  // Whether the cluster was taken down, so that nothing is to start this head again.
  [[nodiscard]] bool down() const { return down_.load(); }
  // Whether that has begun: whoever ends the head now ends the cluster, too.
  [[nodiscard]] bool going_down() const { return going_down_.load(); }
  // Loads the records from the store and begins to serve. Blocks up to the store's time-outs.
  Status Start();

 private:
  HeadService(Transport* transport, Lane* store_lane, Store* store, Spool* spool,
              const HeadOptions& options, const std::string& id);
  // Puts the task, and does all that comes of it.
  void Put(HeadStep step);
  void Run();
  void Do(const step::Send& send) { (void)transport_->Send(send.to, send.frame); }
  void Do(const step::LetGuest& guest) { transport_->LetGuest(guest.key, guest.in); }
  void Do(const step::Log& log);
  void Do(const step::GoingDown& /*going*/) { going_down_.store(true); }
  void Do(const step::Down& /*down*/) { down_.store(true); }
  void Do(const step::Count& count) { metrics::Add(count.id, count.by, count.label); }
  void Do(const step::Gauge& gauge) { metrics::Set(gauge.id, gauge.value, gauge.label); }
  void Do(step::Publish& publish) { metrics::Publish(std::move(publish.families)); }
  void Do(step::Keep& keep);
  void Do(const step::DropRecords& drop) { records_.DeletePrefix(drop.prefix); }
  void Do(const step::MarkRecords& mark) { mark.found ? records_.Watch() : records_.Mark(); }
  void Do(const step::AwaitKept& kept);
  void Do(const step::OfferState& offered);
  void Do(step::SaveState& saved);
  void Do(const step::LoadState& load);
  void Do(const step::EndLoad& load) { loads_.Done(load.process); }
  void Do(step::OpenEpochs& open) { groups_.Open(std::move(open.options)); }
  void Do(const step::CloseEpochs& close) { groups_.Close(close.group); }
  void Do(const step::RefreshEpochs& /*refresh*/) { groups_.Refresh(); }
  void Do(const step::TellCoordinator& tell) { groups_.Feed(tell.group, tell.event); }

  Transport* const transport_;
  Store* const store_;
  groups::GroupService groups_;
  Records records_;
  StateSaves saves_;
  StateLoads loads_;
  HeadCore core_;
  bool running_ = false;
  TimerId timer_ = kNoTimer;
  Time wake_at_ = Time::Never();
  std::atomic<bool> going_down_{false};
  std::atomic<bool> down_{false};
  LoopScope scope_{&transport_->loop()};  // Last.
};

}  // namespace troupe::daemons
