// SPDX-License-Identifier: Apache-2.0

// Loads libibverbs at its first use. A build needs only its headers; a host without the library reports that verbs is
// missing when the transport is chosen, and other transports work.

#include "transport/verbs/library.hpp"

#include "headway/comm/status.hpp"

#include <dlfcn.h>

#include <string>

namespace headway::comm::verbs {

namespace {

template <typename Function>
void find_if_there(void* handle, char const* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));
}

template <typename Function>
void find(void* handle, char const* name, Function& function) {
  find_if_there(handle, name, function);
  if (function == nullptr) throw SystemError(std::string("libibverbs.so.1 has no ") + name);
}

Library load() {
  void* const handle = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw SystemError(std::string("transport verbs: ") + ::dlerror());
  Library all{};
  find(handle, "ibv_get_device_list", all.get_device_list);
  find(handle, "ibv_free_device_list", all.free_device_list);
  find(handle, "ibv_get_device_name", all.get_device_name);
  find(handle, "ibv_open_device", all.open_device);
  find(handle, "ibv_close_device", all.close_device);
  find(handle, "ibv_query_device", all.query_device);
  find(handle, "ibv_query_port", all.query_port);
  find(handle, "_ibv_query_gid_ex", all.query_gid_ex);
  find(handle, "ibv_alloc_pd", all.alloc_pd);
  find(handle, "ibv_dealloc_pd", all.dealloc_pd);
  find(handle, "ibv_reg_mr", all.reg_mr);
  find_if_there(handle, "ibv_reg_dmabuf_mr", all.reg_dmabuf_mr);
  find(handle, "ibv_dereg_mr", all.dereg_mr);
  find(handle, "ibv_create_comp_channel", all.create_comp_channel);
  find(handle, "ibv_destroy_comp_channel", all.destroy_comp_channel);
  find(handle, "ibv_create_cq", all.create_cq);
  find(handle, "ibv_destroy_cq", all.destroy_cq);
  find(handle, "ibv_get_cq_event", all.get_cq_event);
  find(handle, "ibv_ack_cq_events", all.ack_cq_events);
  find(handle, "ibv_create_srq", all.create_srq);
  find(handle, "ibv_destroy_srq", all.destroy_srq);
  find(handle, "ibv_create_qp", all.create_qp);
  find(handle, "ibv_modify_qp", all.modify_qp);
  find(handle, "ibv_destroy_qp", all.destroy_qp);
  find(handle, "ibv_wc_status_str", all.wc_status_str);
  return all;
}

}  // namespace

Library const& library() {
  static Library const loaded = load();
  return loaded;
}

}  // namespace headway::comm::verbs
