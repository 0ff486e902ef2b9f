// Asks EC2 one thing and waits for the answer, through throttling, hiccups and expired credentials.
//
// Whatever is asked here may be asked twice: what makes something carries a token of its own.
// Thread: one at a time, which waits; the identity may be shared.
// Limits: each request has a time limit, all of them together another one; see Ec2Patience.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "autoscaler/ec2/aws_identity.h"
#include "autoscaler/ec2/aws_query.h"
#include "autoscaler/ec2/aws_xml.h"
#include "autoscaler/ec2/ec2_errors.h"
#include "autoscaler/request_lanes.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::ec2 {

inline constexpr int kEc2TriesMax = 4;  // Of what fails otherwise than by throttling.
inline constexpr Duration kEc2PauseMin = milliseconds(500);
inline constexpr Duration kEc2PauseMax = seconds(20);
inline constexpr size_t kEc2ReplyMax = size_t{16} << 20;

struct Ec2Patience {
  Time until;            // Then the answer is kDeadlineExceeded.
  Time throttled_until;  // While EC2 only says that it is asked too often.
};

using Ec2Seams = RequestSeams;

struct Ec2Answer {
  XmlElement xml = {};                             // If it is neither of these.
  std::optional<Ec2Error> refused = std::nullopt;  // EC2's own word.
  std::optional<Error> failed = std::nullopt;      // There was no such answer.
  int64_t wall_s = 0;  // When, by EC2's clock if it tells; of one that is ok.

  [[nodiscard]] bool ok() const { return !refused && !failed; }
  // Of one that is not ok.
  [[nodiscard]] Error Tell(const Ec2Question& question) const;
};

// See RequestPause.
[[nodiscard]] Duration Ec2Pause(int tries, double random);

class Ec2Caller {
 public:
  Ec2Caller(AwsIdentity* identity, Ec2Seams seams, Duration limit)
      : identity_(identity), seams_(std::move(seams)), limit_(limit) {}

  // `parameters` begin with the action. `limit`: of all requests together.
  Ec2Answer Call(const AwsParameters& parameters, const Ec2Patience& patience);
  [[nodiscard]] Time Now() const { return seams_.clock->Now(); }
  // One with the usual limit, through throttling for `throttled` at least.
  [[nodiscard]] Ec2Patience Patience(Duration throttled = Duration::zero()) const;
  [[nodiscard]] const Ec2Seams& seams() const { return seams_; }

 private:
  Ec2Answer Ask(const AwsParameters& parameters, Time until, const AwsCredentials& credentials);

  AwsIdentity* const identity_;
  const Ec2Seams seams_;
  const Duration limit_;
};

}  // namespace troupe::ec2
