#include "hstu/cuda/hopper_forward_launch.cuh"

namespace headway::kernels {

template void hopper_forward_of_dim<32>(HstuForwardArgs const&, CudaStream, std::int32_t*);

}  // namespace headway::kernels
