// Where credentials, region and endpoint come from, in the order of Amazon's tools: the
// environment, a web identity, a profile of ~/.aws (keys, a role, a `credential_process`), the
// agent of a container, the role of the instance.
//
// A link that is set up and fails ends the search: the next one would be somebody else. The error
// of a search that found nothing says of each link why. No secret stands in an error.
// Thread: any, if those of the world may be called so; calls wait for what they ask.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "autoscaler/ec2/aws_profiles.h"
#include "autoscaler/ec2/aws_query.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::ec2 {

inline constexpr Duration kMetadataLimit = seconds(2);  // Of one question; there may be nobody.
inline constexpr Duration kTokenServiceLimit = seconds(10);

// What is asked of the world; tests have one of their own.
struct AwsWorld {
  std::function<std::optional<std::string>(const std::string& name)> variable;
  std::function<std::optional<std::string>(const std::string& path)> read;
  // What a command of a shell prints.
  std::function<Result<std::string>(const std::string& command)> run;
  std::function<int64_t()> wall_s;  // Seconds since 1970.
};
// Without `run`, which is the caller's.
[[nodiscard]] AwsWorld RealAwsWorld();

// What a cluster file says of it; empty: not given.
struct AwsChoice {
  std::string profile;
  std::string region;
  std::string endpoint;  // Of EC2.
};

class AwsChain {
 public:
  AwsChain(AwsWorld world, AwsChoice choice);

  [[nodiscard]] Result<AwsCredentials> Credentials(const AwsSend& send) const;
  [[nodiscard]] Result<std::string> Region(const AwsSend& send) const;
  // Of "ec2" or "sts".
  [[nodiscard]] std::string Endpoint(const std::string& service, const std::string& region) const;
  [[nodiscard]] const AwsWorld& world() const { return world_; }

 private:
  struct Profiles;

  // Each of them: kNotFound, and why, if it is not set up.
  [[nodiscard]] Result<AwsCredentials> OfVariables() const;
  [[nodiscard]] Result<AwsCredentials> OfWebIdentity(const AwsSend& send) const;
  [[nodiscard]] Result<AwsCredentials> OfProfile(const AwsSend& send) const;
  [[nodiscard]] Result<AwsCredentials> OfContainer(const AwsSend& send) const;
  [[nodiscard]] Result<AwsCredentials> OfInstance(const AwsSend& send) const;

  [[nodiscard]] Result<AwsCredentials> OfProfileNamed(const std::string& name,
                                                      const Profiles& profiles,
                                                      std::set<std::string> seen,
                                                      const AwsSend& send) const;
  [[nodiscard]] Result<AwsCredentials> OfRole(const std::string& name, const AwsProfile& profile,
                                              const Profiles& profiles,
                                              const std::set<std::string>& seen,
                                              const AwsSend& send) const;
  [[nodiscard]] Result<AwsCredentials> AssumeWithWebIdentity(const std::string& role,
                                                             const std::string& token_file,
                                                             const std::string& session,
                                                             const AwsSend& send) const;
  [[nodiscard]] Result<AwsCredentials> AskTokenService(const AwsParameters& parameters,
                                                       const AwsCredentials* signer,
                                                       const AwsSend& send) const;
  [[nodiscard]] Result<std::string> AskMetadata(const std::string& path, const AwsSend& send) const;

  [[nodiscard]] std::string Variable(const std::string& name) const;
  [[nodiscard]] std::string ProfileName() const;
  [[nodiscard]] Profiles ReadProfiles() const;

  const AwsWorld world_;
  const AwsChoice choice_;
};

}  // namespace troupe::ec2
