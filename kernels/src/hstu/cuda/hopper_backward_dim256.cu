#include "hstu/cuda/hopper_backward_launch.cuh"

namespace headway::kernels {

template void hopper_backward_of_dim<256>(HstuBackwardArgs const&, CudaStream, void*);

}  // namespace headway::kernels
