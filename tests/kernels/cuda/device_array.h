// Device memory for tests and benchmarks.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace outrider::cuda {

inline void CudaOk(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

/// Device memory of `count` elements, filled with a byte pattern at first.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count = 0, int fill = 0xFF) : count_(count) {
    if (count == 0) return;
    CudaOk(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), "cudaMalloc");
    CudaOk(cudaMemset(data_, fill, count * sizeof(T)), "cudaMemset");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    if (!values.empty()) {
      CudaOk(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice),
             "upload");
    }
  }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~DeviceArray() { cudaFree(data_); }
  T* data() const { return data_; }
  size_t size() const { return count_; }
  std::vector<T> Download() const {
    std::vector<T> values(count_);
    CudaOk(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
           "download");
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace outrider::cuda
