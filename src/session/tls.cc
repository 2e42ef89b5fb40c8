#include "session/tls.h"

#include <array>
#include <tuple>
#include <utility>

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/check.h"

namespace afd::session {
namespace {

// The reason of the first error that OpenSSL noted on this thread, and forgets all of them.
std::string why() {
  const unsigned long code = ::ERR_peek_error();
  const char* const reason = ::ERR_reason_error_string(code);
  std::string text = reason != nullptr ? reason : "no reason given";
  ::ERR_clear_error();
  return text;
}

bool is_number(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return ::inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

ssl_st* make(ssl_ctx_st* context) {
  ssl_st* const ssl = ::SSL_new(context);
  BIO* const in = ::BIO_new(::BIO_s_mem());
  BIO* const out = ::BIO_new(::BIO_s_mem());
  AFD_CHECK(ssl != nullptr && in != nullptr && out != nullptr);  // memory is out
  ::SSL_set_bio(ssl, in, out);                                   // owns them
  return ssl;
}

}  // namespace

Result<TlsContext> TlsContext::load(const SessionConfig& config) {
  ::ERR_clear_error();
  const std::shared_ptr<ssl_ctx_st> context(::SSL_CTX_new(::TLS_method()), &::SSL_CTX_free);
  if (!context) {
    return fail(ErrorCode::kUnavailable, "cannot use TLS: " + why());
  }
  const auto bad_file = [](const char* what, const std::string& path) {
    return fail(ErrorCode::kInvalidArgument,
                std::string("TLS ") + what + " file " + path + " cannot be used: " + why());
  };
  ::SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  ::SSL_CTX_set_num_tickets(context.get(), 0);  // nothing is resumed
  ::SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  if (::SSL_CTX_use_certificate_chain_file(context.get(), config.tls_certificate_file.c_str()) !=
      1) {
    return bad_file("certificate", config.tls_certificate_file);
  }
  if (::SSL_CTX_use_PrivateKey_file(context.get(), config.tls_key_file.c_str(), SSL_FILETYPE_PEM) !=
          1 ||
      ::SSL_CTX_check_private_key(context.get()) != 1) {
    return bad_file("key", config.tls_key_file);
  }
  if (::SSL_CTX_load_verify_file(context.get(), config.tls_ca_file.c_str()) != 1) {
    return bad_file("authority", config.tls_ca_file);
  }
  return TlsContext(context);
}

std::unique_ptr<TlsStream> TlsStream::accept(const TlsContext& context) {
  std::unique_ptr<TlsStream> stream(new TlsStream(make(context.context_.get())));
  ::SSL_set_accept_state(stream->ssl_);
  return stream;
}

std::unique_ptr<TlsStream> TlsStream::connect(const TlsContext& context, const std::string& host) {
  std::unique_ptr<TlsStream> stream(new TlsStream(make(context.context_.get())));
  ::SSL_set_connect_state(stream->ssl_);
  const int named = is_number(host) ? ::X509_VERIFY_PARAM_set1_ip_asc(
                                          ::SSL_get0_param(stream->ssl_), host.c_str())
                                    : ::SSL_set1_host(stream->ssl_, host.c_str());
  AFD_CHECK(named == 1);  // memory is out
  // Begins: the first message waits to be taken.
  std::ignore = stream->go_on();
  return stream;
}

TlsStream::~TlsStream() {
  ::SSL_free(ssl_);
}

// Goes on with the handshake, and then says what waits.
Result<void> TlsStream::go_on() {
  ::ERR_clear_error();
  if (::SSL_is_init_finished(ssl_) == 0) {
    const int status = ::SSL_do_handshake(ssl_);
    if (status != 1 && ::SSL_get_error(ssl_, status) != SSL_ERROR_WANT_READ) {
      const long verified = ::SSL_get_verify_result(ssl_);
      const std::string detail =
          verified == X509_V_OK
              ? ""
              : std::string(" (") + ::X509_verify_cert_error_string(verified) + ")";
      return fail(ErrorCode::kProtocolMismatch, "TLS: " + why() + detail);
    }
    if (status != 1) {
      return {};
    }
  }
  return send_waiting();
}

Result<void> TlsStream::send_waiting() {
  if (waiting_.empty()) {
    return {};
  }
  std::size_t written = 0;
  // Into memory: takes all of it.
  if (::SSL_write_ex(ssl_, waiting_.data(), waiting_.size(), &written) != 1 ||
      written != waiting_.size()) {
    return fail(ErrorCode::kProtocolMismatch, "TLS: " + why());
  }
  waiting_.clear();
  return {};
}

Result<void> TlsStream::receive(std::string_view bytes, std::string& plain) {
  std::size_t written = 0;
  AFD_CHECK(bytes.empty() ||
            ::BIO_write_ex(::SSL_get_rbio(ssl_), bytes.data(), bytes.size(), &written) == 1);
  if (Result<void> gone_on = go_on(); !gone_on) {
    return gone_on;
  }
  if (::SSL_is_init_finished(ssl_) == 0) {
    return {};
  }
  std::array<char, 16384> scratch;
  while (true) {
    std::size_t count = 0;
    ::ERR_clear_error();
    const int status = ::SSL_read_ex(ssl_, scratch.data(), scratch.size(), &count);
    if (status == 1) {
      plain.append(scratch.data(), count);
      continue;
    }
    const int error = ::SSL_get_error(ssl_, status);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_ZERO_RETURN) {
      return {};
    }
    return fail(ErrorCode::kProtocolMismatch, "TLS: " + why());
  }
}

void TlsStream::send(std::string_view plain) {
  waiting_ += plain;
  if (::SSL_is_init_finished(ssl_) == 1) {
    ::ERR_clear_error();
    std::ignore = send_waiting();  // a broken stream: its reader says so
  }
}

std::string TlsStream::take_output() {
  BIO* const out = ::SSL_get_wbio(ssl_);
  std::string bytes(::BIO_ctrl_pending(out), '\0');
  std::size_t count = 0;
  if (!bytes.empty() && ::BIO_read_ex(out, bytes.data(), bytes.size(), &count) != 1) {
    count = 0;
  }
  bytes.resize(count);
  return bytes;
}

}  // namespace afd::session
