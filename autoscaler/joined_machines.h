// Several sources of machines as one, each for offers of its own: the regions of a cloud.
//
// A source that does not answer holds up none of the others: its machines are told as they were
// listed last, unless an order was lost meanwhile. Who has to know that nothing is left asks
// whole(), which then has no list.
// Thread: one; no call waits.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "autoscaler/machine_source.h"

namespace troupe {

class JoinedMachines final : public MachineSource {
 public:
  struct Part {
    std::string name;  // Of the region, for people.
    std::set<std::string> offers;
    std::unique_ptr<MachineSource> source;
  };

  explicit JoinedMachines(std::vector<Part> parts);

  void Create(const MachineOrder& order, Answer done) override;
  void List(Answer done) override { ListAll(std::move(done), true); }
  // Of whom nobody knows where they are all are asked: what is not there counts as ended.
  void Terminate(const std::vector<std::string>& ids, std::function<void(Status)> done) override;
  void Printed(const std::string& id, const std::function<void(const std::string&)>& done) override;
  void Withdraw(const std::string& request_id) override;
  std::map<std::string, double> TakePrices() override;
  bool Step(Time now) override;
  // The same without what was listed before. Lives as long as this.
  [[nodiscard]] MachineSource& whole() { return whole_; }

 private:
  class Whole final : public MachineSource {
   public:
    explicit Whole(JoinedMachines* all) : all_(all) {}
    void Create(const MachineOrder& order, Answer done) override;
    void List(Answer done) override { all_->ListAll(std::move(done), false); }
    void Terminate(const std::vector<std::string>& ids, std::function<void(Status)> done) override;

   private:
    JoinedMachines* const all_;
  };
  struct Known {
    Part part;
    std::optional<std::vector<Machine>> last;
    std::set<std::string> ids;  // That were made or listed there.
    bool lost = false;          // An order that may have been carried out, since that list.
    std::string trouble;        // As it was logged last.
  };
  struct Round;

  void ListAll(Answer done, bool old_will_do);
  void Listed(Known& known, const Result<std::vector<Machine>>& listed, Round& round);
  void Made(Known& known, const Result<std::vector<Machine>>& made);

  std::vector<Known> parts_;
  Whole whole_{this};
};

}  // namespace troupe
