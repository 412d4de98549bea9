// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <filesystem>
#include <memory>

namespace headway::serving {

/// Files in PEM format. Without any of them connections are not encrypted.
struct TlsFiles {
  std::filesystem::path certificate{}, key{};  ///< This side shows them.
  std::filesystem::path authority{};           ///< Certificates of those who sign the other side's.
};

/// Credentials of a server. With `authority`, clients need a certificate that it has signed.
/// @throws base::UsageError if a file is missing in `files`; base::SystemError if one cannot be read
[[nodiscard]] std::shared_ptr<grpc::ServerCredentials> server_credentials(TlsFiles const& files);

/// Credentials of a client, which trusts servers that `authority` has signed. Certificate and key may be left out.
/// @throws as server_credentials() does
[[nodiscard]] std::shared_ptr<grpc::ChannelCredentials> client_credentials(TlsFiles const& files);

}  // namespace headway::serving
