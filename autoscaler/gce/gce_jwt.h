// The signed statement with which a service account proves itself: a JSON Web Token, RS256.
//
// Pure.
// Thread: plain values.
#pragma once

#include <string>

#include "runtime/result.h"

namespace troupe::gce {

// What tokens are asked for; what those may do who have them is said elsewhere.
inline constexpr const char* kGceScope = "https://www.googleapis.com/auth/cloud-platform";

// `claims`: JSON. `key`: a private RSA key in PEM, of which nothing is in an error.
[[nodiscard]] Result<std::string> SignJwt(const std::string& claims, const std::string& key,
                                          const std::string& key_id);
// Base64 as URLs have it, without padding.
[[nodiscard]] std::string UrlBase64(const std::string& bytes);

}  // namespace troupe::gce
