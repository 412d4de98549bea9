// SPDX-License-Identifier: Apache-2.0
#include "credentials.hpp"

#include "headway/base/status.hpp"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>

namespace headway::serving {

namespace {

/// Contents of a PEM file; empty for no file.
std::string read(std::filesystem::path const& path) {
  if (path.empty()) return {};
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw base::SystemError("reading a file for TLS", errno, path.string());
  base::expects(text.find("-----BEGIN ") != std::string::npos, path.string() + " is not a PEM file");
  return text;
}

void expect_both(TlsFiles const& files) {
  base::expects(files.certificate.empty() == files.key.empty(), "TLS needs a certificate and its key");
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> server_credentials(TlsFiles const& files) {
  expect_both(files);
  if (files.certificate.empty()) {
    base::expects(files.authority.empty(), "certificates of clients are checked with TLS: it needs a certificate");
    return grpc::InsecureServerCredentials();
  }
  grpc::SslServerCredentialsOptions options(files.authority.empty()
                                                ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = read(files.authority);
  options.pem_key_cert_pairs.push_back({.private_key = read(files.key), .cert_chain = read(files.certificate)});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> client_credentials(TlsFiles const& files) {
  expect_both(files);
  if (files.authority.empty()) {
    base::expects(files.certificate.empty(), "TLS needs the certificates of those who sign servers'");
    return grpc::InsecureChannelCredentials();
  }
  return grpc::SslCredentials({.pem_root_certs = read(files.authority),
                               .pem_private_key = read(files.key),
                               .pem_cert_chain = read(files.certificate)});
}

}  // namespace headway::serving
