#include "outrider/parallel/nccl_library.h"

#include <dlfcn.h>

#include "outrider/base/error.h"

namespace outrider {

NcclLibrary::NcclLibrary(const std::string& name) : name_(name) {
  handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) {
    const char* const reason = dlerror();
    throw Error(
        ErrorCode::kUnavailable,
        fmt::format("NCCL cannot be loaded ({}): install it (libnccl2 of NVIDIA's packages, "
                    "or nvidia-nccl-cu13 of PyPI) and name its folder in LD_LIBRARY_PATH",
                    reason == nullptr ? name : reason));
  }
  int (*get_version)(int*) = nullptr;
  Find("ncclGetVersion", get_version);
  Find("ncclGetErrorString", get_error_string_);
  Find("ncclGetUniqueId", get_unique_id);
  Find("ncclCommInitRank", comm_init_rank);
  Find("ncclCommDestroy", comm_destroy);
  Find("ncclCommAbort", comm_abort);
  Find("ncclAllGather", all_gather);
  Check(get_version(&version_), "NCCL's version");
}

void NcclLibrary::Check(int result, const char* what) const {
  if (result == 0) return;
  throw Error(ErrorCode::kUnavailable, fmt::format("{}: NCCL says: {} (NCCL_DEBUG=WARN says more)",
                                                   what, get_error_string_(result)));
}

template <typename Function>
void NcclLibrary::Find(const char* name, Function& function) const {
  function = reinterpret_cast<Function>(dlsym(handle_, name));
  if (function != nullptr) return;
  throw Error(ErrorCode::kUnavailable,
              fmt::format("{} has no {}, which NCCL has: another version is needed", name_, name));
}

}  // namespace outrider
