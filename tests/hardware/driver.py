"""NVIDIA's driver by ctypes: memory, and kernels in PTX. No CUDA toolkit and no torch.

    driver.py hold MIB SECONDS    takes memory of the first device, says `held`, and keeps it
    driver.py fault SECONDS       waits, then writes to an address that is not there: the driver reports Xid 31
"""

import ctypes
import sys
import time

FAULT = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry main_kernel()
{
    .reg .u64 %address;
    mov.u64 %address, 4096;
    st.global.u32 [%address], 1;
    ret;
}
"""


class Driver:
    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            sys.exit("%s: CUDA error %d" % (name, result))

    def hold(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))

    def run(self, ptx):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ptx)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"main_kernel")
        self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        self.call("cuCtxSynchronize")


if __name__ == "__main__":
    driver = Driver()
    if sys.argv[1] == "hold":
        driver.hold(int(sys.argv[2]) << 20)
        print("held", flush=True)
        time.sleep(float(sys.argv[3]))
    else:
        time.sleep(float(sys.argv[2]))
        driver.run(FAULT)
