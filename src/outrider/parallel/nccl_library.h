// NVIDIA's NCCL, loaded where ranks need it: nothing is linked with it, and its header is not
// needed.
#pragma once

#include <cstddef>
#include <string>

struct CUstream_st;

namespace outrider {

/// NCCL's ncclComm: one rank's end of a group.
struct NcclComm;

/// NCCL's ncclUniqueId, which the ranks of a group have in common.
struct NcclId {
  char bytes[128];
};

/// The functions of nccl.h that are used. Their results are what Check takes; 0: it went well.
class NcclLibrary {
 public:
  /// Throws Error{kUnavailable} that says what to do if the library, or a function that it should
  /// have, is not there.
  explicit NcclLibrary(const std::string& name = "libnccl.so.2");

  /// Throws Error{kUnavailable} that begins with `what`, unless `result` is 0.
  void Check(int result, const char* what) const;
  /// 22809 is 2.28.9.
  int version() const { return version_; }

  int (*get_unique_id)(NcclId* id) = nullptr;
  int (*comm_init_rank)(NcclComm** comm, int ranks, NcclId id, int rank) = nullptr;
  int (*comm_destroy)(NcclComm* comm) = nullptr;
  int (*comm_abort)(NcclComm* comm) = nullptr;
  /// `count` bytes of every rank, in order of rank, with kBytes as type.
  int (*all_gather)(const void* from, void* to, size_t count, int type, NcclComm* comm,
                    CUstream_st* stream) = nullptr;

  static constexpr int kBytes = 1;  // ncclUint8

 private:
  template <typename Function>
  void Find(const char* name, Function& function) const;

  std::string name_;
  void* handle_ = nullptr;  // it stays loaded, as it may have threads of its own
  int version_ = 0;
  const char* (*get_error_string_)(int result) = nullptr;
};

}  // namespace outrider
