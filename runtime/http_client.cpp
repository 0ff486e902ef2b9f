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
  const HttpStream* stream = nullptr;
  CURL* easy = nullptr;
  Time heard_at{};
  bool enough = false;

  [[nodiscard]] bool IsLines() const {
    long status = 0;
    ::curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    return stream != nullptr && status == 200;
  }
};

// What has come is kept in the reply's body until its line ends. False: no more is wanted.
bool TakeLines(Receiver& receiver, std::string_view bytes) {
  std::string& rest = receiver.reply.body;
  while (!receiver.enough) {
    const size_t end = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, end);
    receiver.too_long = rest.size() + piece.size() > receiver.stream->line_max;
    if (receiver.too_long) return false;
    rest.append(piece);
    if (end == std::string_view::npos) return true;
    bytes.remove_prefix(end + 1);
    receiver.enough = !receiver.stream->line(rest);
    rest.clear();
  }
  return false;
}

size_t TakeBody(char* bytes, size_t size, size_t count, void* to) {
  auto& receiver = *static_cast<Receiver*>(to);
  const size_t got = size * count;
  receiver.heard_at = SteadyClock().Now();
  if (receiver.IsLines()) return TakeLines(receiver, {bytes, got}) ? got : 0;
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
  const bool last = line == "\r\n" || line == "\n";
  if (last && receiver.IsLines() && receiver.stream->begun) receiver.stream->begun();
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
  if (receiver.too_long && receiver.IsLines())
    return {ErrorCode::kResourceExhausted,
            "a line is longer than " + std::to_string(receiver.stream->line_max) + " bytes"};
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
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return {ErrorCode::kPeerGone, what};
    default:
      return {ErrorCode::kUnavailable, what};
  }
}

void PrepareCurl() {
  static const CURLcode ready = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  TROUPE_ASSERT(ready == CURLE_OK, "curl_global_init");
}

// The blob is copied.
CURLcode SetBlob(CURL* easy, CURLoption option, const std::string& bytes) {
  curl_blob blob{};
  blob.data = const_cast<char*>(bytes.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  blob.len = bytes.size();
  blob.flags = CURL_BLOB_COPY;
  return bytes.empty() ? CURLE_OK : ::curl_easy_setopt(easy, option, &blob);
}

// What `https://host:port/path` becomes with another name for its host, and where that is.
struct Renamed {
  std::string url;
  std::string host;     // As the server is to hear it.
  std::string connect;  // For CURLOPT_CONNECT_TO.
};

Renamed Rename(const std::string& url, const std::string& name) {
  const size_t scheme = url.find("://");
  const size_t from = scheme == std::string::npos ? 0 : scheme + 3;
  const size_t slash = std::min(url.find('/', from), url.size());
  const std::string place = url.substr(from, slash - from);
  const size_t colon = place.rfind(':');
  const bool has_port = colon != std::string::npos && place.find(']', colon) == std::string::npos;
  const std::string port = has_port ? place.substr(colon + 1) : "443";
  const std::string host = has_port ? place.substr(0, colon) : place;
  return {url.substr(0, from) + name + ":" + port + url.substr(slash), place,
          name + ":" + port + ":" + host + ":" + port};
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

  // What not every libcurl can.
  [[nodiscard]] bool PrepareTls(const HttpRequest& request) const {
    const HttpTls& tls = request.tls;
    bool done = SetBlob(easy, CURLOPT_CAINFO_BLOB, tls.ca) == CURLE_OK &&
                SetBlob(easy, CURLOPT_SSLCERT_BLOB, tls.certificate) == CURLE_OK &&
                SetBlob(easy, CURLOPT_SSLKEY_BLOB, tls.key) == CURLE_OK;
    if (tls.insecure)
      done = done && ::curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L) == CURLE_OK &&
             ::curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L) == CURLE_OK;
    return done && ::curl_easy_setopt(easy, CURLOPT_PROXY, request.proxy.c_str()) == CURLE_OK;
  }

  void Prepare(const HttpRequest& request, curl_slist* headers, Receiver& receiver) const {
    ::curl_easy_reset(easy);
    const auto set = [this](CURLoption option, auto value) {
      const CURLcode code = ::curl_easy_setopt(easy, option, value);
      TROUPE_ASSERT(code == CURLE_OK, "curl_easy_setopt");
    };
    set(CURLOPT_URL, request.url.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_FOLLOWLOCATION, 0L);
    set(CURLOPT_NOSIGNAL, 1L);
    if (receiver.stream != nullptr) set(CURLOPT_TCP_KEEPALIVE, 1L);
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
    if (!request.tls.ca.empty()) {
      set(CURLOPT_CAPATH, static_cast<char*>(nullptr));  // Those of the system are not believed.
    } else if (!ca_file.empty()) {
      set(CURLOPT_CAINFO, ca_file.c_str());
    }
    set(CURLOPT_WRITEFUNCTION, &TakeBody);
    set(CURLOPT_WRITEDATA, static_cast<void*>(&receiver));
    set(CURLOPT_HEADERFUNCTION, &TakeHeader);
    set(CURLOPT_HEADERDATA, static_cast<void*>(&receiver));
  }

  // Until it is over, or cancelled.
  CURLcode Perform(const Receiver& receiver) const {
    const Duration silence =
        receiver.stream == nullptr ? Duration::zero() : receiver.stream->silence;
    for (;;) {
      int running = 0;
      if (::curl_multi_perform(multi, &running) != CURLM_OK) return CURLE_FAILED_INIT;
      int left = 0;
      while (const CURLMsg* message = ::curl_multi_info_read(multi, &left)) {
        if (message->msg == CURLMSG_DONE) return message->data.result;
      }
      if (cancelled.load()) return CURLE_ABORTED_BY_CALLBACK;
      Duration left_of_silence = milliseconds(kPoll_ms);
      if (silence > Duration::zero()) {
        left_of_silence = receiver.heard_at + silence - SteadyClock().Now();
        if (left_of_silence <= Duration::zero()) return CURLE_OPERATION_TIMEDOUT;
      }
      const auto poll_ms =
          static_cast<int>(std::min<int64_t>(kPoll_ms, left_of_silence / milliseconds(1) + 1));
      if (::curl_multi_poll(multi, nullptr, 0, poll_ms, nullptr) != CURLM_OK)
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

Result<HttpReply> HttpClient::Send(const HttpRequest& request) { return Perform(request, nullptr); }

Result<HttpReply> HttpClient::Stream(const HttpRequest& request, const HttpStream& stream) {
  return Perform(request, &stream);
}

Result<HttpReply> HttpClient::Perform(const HttpRequest& request, const HttpStream* stream) {
  const Error cancelled{ErrorCode::kCancelled, "cancelled"};
  if (state_->cancelled.load()) return cancelled;
  HttpRequest sent = request;
  Renamed renamed;
  if (!request.tls.server_name.empty() && request.url.starts_with("https://")) {
    renamed = Rename(request.url, request.tls.server_name);
    sent.url = renamed.url;
    sent.headers.emplace_back("Host", renamed.host);
  }
  curl_slist* headers = nullptr;
  // No "100 Continue". A signature would have it, though it is not sent.
  if (!request.aws) headers = ::curl_slist_append(headers, "Expect:");
  for (const auto& [name, value] : sent.headers)
    headers = ::curl_slist_append(headers, (name + ": " + value).c_str());
  curl_slist* connect =
      renamed.connect.empty() ? nullptr : ::curl_slist_append(nullptr, renamed.connect.c_str());
  Receiver receiver;
  receiver.bytes_max = request.bytes_max;
  receiver.stream = stream;
  receiver.easy = state_->easy;
  receiver.heard_at = SteadyClock().Now();
  state_->Prepare(sent, headers, receiver);
  if (connect != nullptr) ::curl_easy_setopt(state_->easy, CURLOPT_CONNECT_TO, connect);
  CURLcode code = state_->PrepareTls(sent) ? CURLE_FAILED_INIT : CURLE_NOT_BUILT_IN;
  if (code == CURLE_FAILED_INIT &&
      ::curl_multi_add_handle(state_->multi, state_->easy) == CURLM_OK) {
    code = state_->Perform(receiver);
    ::curl_multi_remove_handle(state_->multi, state_->easy);
  }
  ::curl_slist_free_all(headers);
  ::curl_slist_free_all(connect);
  if (code != CURLE_OK && !receiver.enough) {
    if (state_->cancelled.load()) return cancelled;
    return HttpError(code, receiver);
  }
  long status = 0;
  ::curl_easy_getinfo(state_->easy, CURLINFO_RESPONSE_CODE, &status);
  receiver.reply.status = static_cast<int>(status);
  if (receiver.IsLines()) receiver.reply.body.clear();
  return std::move(receiver.reply);
}

void HttpClient::Cancel() {
  state_->cancelled.store(true);
  ::curl_multi_wakeup(state_->multi);
}

}  // namespace troupe
