// Adapter of libcurl: the only file that includes it.
#include "runtime/http_client.h"

#include <curl/curl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <string_view>

#include "runtime/assert.h"

namespace troupe {
namespace {

constexpr int kPoll_ms = 1000;

struct Receiver {
  HttpReply reply;
  size_t bytes_max = 0;
  size_t header_bytes = 0;
  bool too_long = false;
};

size_t TakeBody(char* bytes, size_t size, size_t count, void* to) {
  auto& receiver = *static_cast<Receiver*>(to);
  const size_t got = size * count;
  receiver.too_long = receiver.too_long || receiver.reply.body.size() + got > receiver.bytes_max;
  if (receiver.too_long) return 0;
  receiver.reply.body.append(bytes, got);
  return got;
}

size_t TakeHeader(char* bytes, size_t size, size_t count, void* to) {
  auto& receiver = *static_cast<Receiver*>(to);
  const size_t got = size * count;
  receiver.header_bytes += got;
  receiver.too_long = receiver.too_long || receiver.header_bytes > kHttpHeadersMax;
  if (receiver.too_long) return 0;
  const std::string_view line(bytes, got);
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return got;
  std::string name(line.substr(0, colon));
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::string_view value = line.substr(colon + 1);
  const size_t from = value.find_first_not_of(" \t");
  const size_t to_end = value.find_last_not_of(" \t\r\n");
  receiver.reply.headers[name] =
      from == std::string_view::npos ? "" : value.substr(from, to_end + 1 - from);
  return got;
}

Error HttpError(CURLcode code, const Receiver& receiver) {
  if (receiver.too_long)
    return {ErrorCode::kResourceExhausted,
            "its reply is longer than " + std::to_string(receiver.bytes_max) + " bytes"};
  const std::string what = ::curl_easy_strerror(code);
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      return {ErrorCode::kDeadlineExceeded, "no reply in time"};
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return {ErrorCode::kInvalidArgument, what};
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
      return {ErrorCode::kPeerGone, what};
    default:
      return {ErrorCode::kUnavailable, what};
  }
}

void PrepareCurl() {
  static const CURLcode ready = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  TROUPE_ASSERT(ready == CURLE_OK, "curl_global_init");
}

// Where the system keeps certificates, if that is not where libcurl was built to look: a wheel
// brings one of another system. Empty: it finds them, or nobody does.
const std::string& CaFile() {
  static const std::string kFile = [] {
    const char* built = ::curl_version_info(CURLVERSION_NOW)->cainfo;
    if (built != nullptr && ::access(built, R_OK) == 0) return std::string();
    for (const char* path :
         {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
          "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}) {
      if (::access(path, R_OK) == 0) return std::string(path);
    }
    return std::string();
  }();
  return kFile;
}

}  // namespace

struct HttpClient::State {
  CURLM* multi = nullptr;
  CURL* easy = nullptr;
  std::atomic<bool> cancelled{false};

  void Prepare(const HttpRequest& request, curl_slist* headers, Receiver& receiver) const {
    ::curl_easy_reset(easy);
    const auto set = [this](CURLoption option, auto value) {
      const CURLcode code = ::curl_easy_setopt(easy, option, value);
      TROUPE_ASSERT(code == CURLE_OK, "curl_easy_setopt");
    };
    set(CURLOPT_URL, request.url.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_FOLLOWLOCATION, 0L);
    set(CURLOPT_PROXY, "");  // The environment's would be asked.
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_USERAGENT, "troupe");
    const auto limit_ms = static_cast<long>(std::max<int64_t>(1, request.limit / milliseconds(1)));
    set(CURLOPT_TIMEOUT_MS, limit_ms);
    set(CURLOPT_CONNECTTIMEOUT_MS, limit_ms);
    set(CURLOPT_HTTPHEADER, headers);
    if (request.method != "GET") set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    if (!request.body.empty() || request.method == "POST" || request.method == "PUT") {
      set(CURLOPT_POSTFIELDSIZE, static_cast<long>(request.body.size()));
      set(CURLOPT_COPYPOSTFIELDS, request.body.c_str());
      set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    }
    if (request.aws) {
      const AwsSigning& aws = *request.aws;
      set(CURLOPT_AWS_SIGV4, ("aws:amz:" + aws.region + ":" + aws.service).c_str());
      set(CURLOPT_USERNAME, aws.key_id.c_str());
      set(CURLOPT_PASSWORD, aws.secret.c_str());
    }
    const std::string& ca_file = request.ca_file.empty() ? CaFile() : request.ca_file;
    if (!ca_file.empty()) set(CURLOPT_CAINFO, ca_file.c_str());
    set(CURLOPT_WRITEFUNCTION, &TakeBody);
    set(CURLOPT_WRITEDATA, static_cast<void*>(&receiver));
    set(CURLOPT_HEADERFUNCTION, &TakeHeader);
    set(CURLOPT_HEADERDATA, static_cast<void*>(&receiver));
  }

  // Until it is over, or cancelled.
  CURLcode Perform() const {
    for (;;) {
      int running = 0;
      if (::curl_multi_perform(multi, &running) != CURLM_OK) return CURLE_FAILED_INIT;
      int left = 0;
      while (const CURLMsg* message = ::curl_multi_info_read(multi, &left)) {
        if (message->msg == CURLMSG_DONE) return message->data.result;
      }
      if (cancelled.load()) return CURLE_ABORTED_BY_CALLBACK;
      if (::curl_multi_poll(multi, nullptr, 0, kPoll_ms, nullptr) != CURLM_OK)
        return CURLE_FAILED_INIT;
    }
  }
};

HttpClient::HttpClient() : state_(std::make_unique<State>()) {
  PrepareCurl();
  state_->multi = ::curl_multi_init();
  state_->easy = ::curl_easy_init();
  TROUPE_ASSERT(state_->multi != nullptr && state_->easy != nullptr, "libcurl");
}

HttpClient::~HttpClient() {
  ::curl_easy_cleanup(state_->easy);
  ::curl_multi_cleanup(state_->multi);
}

Result<HttpReply> HttpClient::Send(const HttpRequest& request) {
  const Error cancelled{ErrorCode::kCancelled, "cancelled"};
  if (state_->cancelled.load()) return cancelled;
  curl_slist* headers = nullptr;
  // No "100 Continue". A signature would have it, though it is not sent.
  if (!request.aws) headers = ::curl_slist_append(headers, "Expect:");
  for (const auto& [name, value] : request.headers)
    headers = ::curl_slist_append(headers, (name + ": " + value).c_str());
  Receiver receiver;
  receiver.bytes_max = request.bytes_max;
  state_->Prepare(request, headers, receiver);
  CURLcode code = CURLE_FAILED_INIT;
  if (::curl_multi_add_handle(state_->multi, state_->easy) == CURLM_OK) {
    code = state_->Perform();
    ::curl_multi_remove_handle(state_->multi, state_->easy);
  }
  ::curl_slist_free_all(headers);
  if (code != CURLE_OK) {
    if (state_->cancelled.load()) return cancelled;
    return HttpError(code, receiver);
  }
  long status = 0;
  ::curl_easy_getinfo(state_->easy, CURLINFO_RESPONSE_CODE, &status);
  receiver.reply.status = static_cast<int>(status);
  return std::move(receiver.reply);
}

void HttpClient::Cancel() {
  state_->cancelled.store(true);
  ::curl_multi_wakeup(state_->multi);
}

}  // namespace troupe
