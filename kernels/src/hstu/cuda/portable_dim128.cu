#include "hstu/cuda/portable_launch.cuh"

namespace headway::kernels {

template void portable_forward_of_dim<128>(HstuForwardArgs const&, CudaStream);
template std::int64_t portable_backward_of_dim<128>(HstuBackwardArgs const&, PortablePartials const&, CudaStream);

}  // namespace headway::kernels
