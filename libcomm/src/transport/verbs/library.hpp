// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

namespace headway::comm::verbs {

/// The functions of libibverbs that are not inline calls into a driver. The library is loaded at its first use, so that
/// programs that link Headway also run on hosts without it.
struct Library {
  struct ibv_device** (*get_device_list)(int*);
  void (*free_device_list)(struct ibv_device**);
  char const* (*get_device_name)(struct ibv_device*);
  struct ibv_context* (*open_device)(struct ibv_device*);
  int (*close_device)(struct ibv_context*);
  int (*query_device)(struct ibv_context*, struct ibv_device_attr*);
  int (*query_port)(struct ibv_context*, std::uint8_t, struct _compat_ibv_port_attr*);
  int (*query_gid_ex)(struct ibv_context*, std::uint32_t, std::uint32_t, struct ibv_gid_entry*, std::uint32_t, size_t);
  struct ibv_pd* (*alloc_pd)(struct ibv_context*);
  int (*dealloc_pd)(struct ibv_pd*);
  struct ibv_mr* (*reg_mr)(struct ibv_pd*, void*, size_t, int);
  /// Null if libibverbs is older than version 34.
  struct ibv_mr* (*reg_dmabuf_mr)(struct ibv_pd*, std::uint64_t, size_t, std::uint64_t, int, int);
  int (*dereg_mr)(struct ibv_mr*);
  struct ibv_comp_channel* (*create_comp_channel)(struct ibv_context*);
  int (*destroy_comp_channel)(struct ibv_comp_channel*);
  struct ibv_cq* (*create_cq)(struct ibv_context*, int, void*, struct ibv_comp_channel*, int);
  int (*destroy_cq)(struct ibv_cq*);
  int (*get_cq_event)(struct ibv_comp_channel*, struct ibv_cq**, void**);
  void (*ack_cq_events)(struct ibv_cq*, unsigned int);
  struct ibv_srq* (*create_srq)(struct ibv_pd*, struct ibv_srq_init_attr*);
  int (*destroy_srq)(struct ibv_srq*);
  struct ibv_qp* (*create_qp)(struct ibv_pd*, struct ibv_qp_init_attr*);
  int (*modify_qp)(struct ibv_qp*, struct ibv_qp_attr*, int);
  int (*destroy_qp)(struct ibv_qp*);
  char const* (*wc_status_str)(enum ibv_wc_status);
};

/// Loads the library at the first call. @throws SystemError naming the missing library or function.
Library const& library();

}  // namespace headway::comm::verbs
