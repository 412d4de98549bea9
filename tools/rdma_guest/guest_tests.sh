#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Runs the tests that need an RDMA device, in the guest or on a machine with such a device.
# Usage: tools/rdma_guest/guest_tests.sh BUILD_DIR
set -uo pipefail
cd "$(dirname "$0")/../.."
build=${1:?usage: tools/rdma_guest/guest_tests.sh BUILD_DIR}
status=0
[ -z "${IN_RDMA_GUEST:-}" ] || tools/rdma_guest/network.sh pair || exit 1
"$build/tests/libcomm/libcomm_verbs_test" || status=1
HEADWAY_TEST_RDMA=1 "$build/tests/libcomm/libcomm_group_test" --gtest_filter='Group/*' || status=1  # The other tests need no device.
if [ -n "${IN_RDMA_GUEST:-}" ]; then
  tools/rdma_guest/exchange.sh "$build" || status=1
  tools/rdma_guest/two_hosts.sh "$build" || status=1
  tools/rdma_guest/bad_wire.sh "$build" || status=1
fi
exit $status
