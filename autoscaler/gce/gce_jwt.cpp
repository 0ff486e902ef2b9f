// Adapter of OpenSSL: the only file that includes it.
#include "autoscaler/gce/gce_jwt.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "autoscaler/cloud_text.h"

namespace troupe::gce {
namespace {

struct FreeOpenSsl {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
template <class T>
using Owned = std::unique_ptr<T, FreeOpenSsl>;

constexpr size_t kKeyMax = 64 << 10;

// Without a question for a password, which a terminal would be asked.
int NoPassword(char* /*buffer*/, int /*size*/, int /*writing*/, void* /*data*/) { return -1; }

Result<std::string> SignWith(EVP_PKEY* key, const std::string& text) {
  const Error failed{ErrorCode::kInvalidArgument, "its private_key cannot sign"};
  const Owned<EVP_MD_CTX> context(EVP_MD_CTX_new());
  if (!context || EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, key) != 1)
    return failed;
  const auto* data = reinterpret_cast<const unsigned char*>(text.data());
  size_t size = 0;
  if (EVP_DigestSign(context.get(), nullptr, &size, data, text.size()) != 1) return failed;
  std::string signature(size, '\0');
  auto* to = reinterpret_cast<unsigned char*>(signature.data());
  if (EVP_DigestSign(context.get(), to, &size, data, text.size()) != 1) return failed;
  signature.resize(size);
  return signature;
}

}  // namespace

std::string UrlBase64(const std::string& bytes) {
  std::string text = EncodeBase64(bytes);
  while (text.ends_with('=')) text.pop_back();
  for (char& c : text) c = c == '+' ? '-' : c == '/' ? '_' : c;
  return text;
}

Result<std::string> SignJwt(const std::string& claims, const std::string& key,
                            const std::string& key_id) {
  const Error bad{ErrorCode::kInvalidArgument, "its private_key is no RSA key in PEM"};
  if (key.empty() || key.size() > kKeyMax) return bad;
  const Owned<BIO> bio(BIO_new_mem_buf(key.data(), static_cast<int>(key.size())));
  if (!bio) return bad;
  const Owned<EVP_PKEY> rsa(PEM_read_bio_PrivateKey(bio.get(), nullptr, &NoPassword, nullptr));
  const bool is_rsa = rsa && EVP_PKEY_base_id(rsa.get()) == EVP_PKEY_RSA;
  ERR_clear_error();  // Of this thread: libcurl would take them for its own.
  if (!is_rsa) return bad;
  nlohmann::json header = {{"alg", "RS256"}, {"typ", "JWT"}};
  if (!key_id.empty()) header["kid"] = key_id;
  const std::string text = UrlBase64(header.dump()) + "." + UrlBase64(claims);
  Result<std::string> signature = SignWith(rsa.get(), text);
  if (!signature.ok()) return signature;
  return text + "." + UrlBase64(*signature);
}

}  // namespace troupe::gce
