// For tests: an authority, and certificates of hosts that it signed, as files.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <afd/config.h>

namespace afd::session::testing {

class Authority {
 public:
  /// Writes into `folder`, which has to be there; `name` sets the files of several apart.
  Authority(std::string folder, const std::string& name)
      : prefix_(std::move(folder) + "/" + name + "-"), key_(EVP_EC_gen("P-256")) {
    certificate_ = make(key_.get(), "CN=" + name, "", key_.get());
    write(path("ca.pem"),
          [&](std::FILE* file) { return ::PEM_write_X509(file, certificate_.get()); });
  }

  /// Files of a host that is known by these names: "IP:127.0.0.1,DNS:node7".
  SessionConfig host(const std::string& name, const std::string& alternative_names) const {
    const Key key(EVP_EC_gen("P-256"));
    const Certificate certificate = make(key.get(), name, alternative_names, key_.get());
    write(path(name + ".key"), [&](std::FILE* file) {
      return ::PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
    write(path(name + ".pem"),
          [&](std::FILE* file) { return ::PEM_write_X509(file, certificate.get()); });
    SessionConfig config;
    config.tls_certificate_file = path(name + ".pem");
    config.tls_key_file = path(name + ".key");
    config.tls_ca_file = path("ca.pem");
    return config;
  }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { ::EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { ::X509_free(certificate); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  std::string path(const std::string& name) const { return prefix_ + name; }

  // Of the authority itself where there is none yet.
  Certificate make(EVP_PKEY* key, const std::string& name, const std::string& alternative_names,
                   EVP_PKEY* signer) const {
    Certificate certificate(::X509_new());
    X509* const x509 = certificate.get();
    X509* const issuer = certificate_ ? certificate_.get() : x509;
    ::X509_set_version(x509, 2);
    ::ASN1_INTEGER_set(::X509_get_serialNumber(x509), certificate_ ? 2 : 1);
    ::X509_gmtime_adj(::X509_getm_notBefore(x509), -3600);
    ::X509_gmtime_adj(::X509_getm_notAfter(x509), 3600);
    ::X509_set_pubkey(x509, key);
    ::X509_NAME_add_entry_by_txt(::X509_get_subject_name(x509), "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    ::X509_set_issuer_name(x509, ::X509_get_subject_name(issuer));
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    ::X509V3_set_ctx(&context, issuer, x509, nullptr, nullptr, 0);
    const auto extend = [&](int kind, const char* value) {
      X509_EXTENSION* const extension = ::X509V3_EXT_conf_nid(nullptr, &context, kind, value);
      EXPECT_NE(extension, nullptr) << value;
      ::X509_add_ext(x509, extension, -1);
      ::X509_EXTENSION_free(extension);
    };
    extend(NID_basic_constraints, certificate_ ? "critical,CA:FALSE" : "critical,CA:TRUE");
    if (!alternative_names.empty()) {
      extend(NID_subject_alt_name, alternative_names.c_str());
    }
    EXPECT_GT(::X509_sign(x509, signer, ::EVP_sha256()), 0);
    return certificate;
  }

  template <typename Writer>
  static void write(const std::string& path, Writer writer) {
    std::FILE* const file = std::fopen(path.c_str(), "wb");
    ASSERT_NE(file, nullptr) << path;
    EXPECT_EQ(writer(file), 1);
    std::fclose(file);
  }

  const std::string prefix_;
  const Key key_;
  Certificate certificate_;
};

}  // namespace afd::session::testing
