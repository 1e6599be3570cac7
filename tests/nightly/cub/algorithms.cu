// Algorithms of CUB and Thrust, one a run: its name is the argument. Each compares its result with the host's.
// Compiled in two halves (-DHALF=0 or 1), because each takes a minute.
#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <vector>
#include <cub/cub.cuh>
#include <thrust/device_ptr.h>
#include <thrust/execution_policy.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/unique.h>

using Numbers = std::vector<int>;
const int COUNT = 6000;

int *to_device(const Numbers &host) {
  int *device;
  cudaMalloc(&device, host.size() * sizeof(int));
  cudaMemcpy(device, host.data(), host.size() * sizeof(int), cudaMemcpyHostToDevice);
  return device;
}

Numbers to_host(const int *device, size_t count) {
  Numbers host(count);
  cudaMemcpy(host.data(), device, count * sizeof(int), cudaMemcpyDeviceToHost);
  return host;
}

// Calls a CUB algorithm twice: for the size of its memory, and to run.
template <class Call> void with_memory(Call call) {
  void *memory = nullptr;
  size_t bytes = 0;
  call(memory, bytes);
  cudaMalloc(&memory, bytes + 1);
  call(memory, bytes);
}

struct Odd { __host__ __device__ bool operator()(int x) const { return x & 1; } };
struct Twice { __host__ __device__ int operator()(int x) const { return 2 * x; } };
struct Less { __host__ __device__ bool operator()(int a, int b) const { return a < b; } };

Numbers input() {
  Numbers x(COUNT);
  for (int i = 0; i < COUNT; ++i) x[i] = (i * 7919) % 251;
  return x;
}

Numbers runs() {
  Numbers x(COUNT);
  for (int i = 0; i < COUNT; ++i) x[i] = (i / 7) % 5;
  return x;
}

bool begins(const Numbers &found, const Numbers &wanted) {
  return std::equal(wanted.begin(), wanted.end(), found.begin());
}

Numbers unique_of(Numbers x) {
  x.erase(std::unique(x.begin(), x.end()), x.end());
  return x;
}

Numbers prefix_sums(const Numbers &x, bool inclusive) {
  Numbers y(x.size());
  int sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = sum + (inclusive ? x[i] : 0);
    sum += x[i];
  }
  return y;
}

const int SEGMENTS = 60;

std::map<std::string, bool (*)()> table = {
#if HALF == 0
    {"DeviceReduce", [] {
       Numbers h = input();
       int *x = to_device(h), *y = to_device({0});
       with_memory([&](void *m, size_t &b) { cub::DeviceReduce::Sum(m, b, x, y, COUNT); });
       return to_host(y, 1)[0] == std::accumulate(h.begin(), h.end(), 0);
     }},
    {"DeviceReduce-ArgMin", [] {
       Numbers h = input();
       h[4321] = -5;
       int *x = to_device(h), *y = to_device({0}), *at = to_device({0, 0});
       with_memory([&](void *m, size_t &b) {
         cub::DeviceReduce::ArgMin(m, b, x, y, reinterpret_cast<long long *>(at), COUNT);
       });
       return to_host(y, 1)[0] == -5 && to_host(at, 1)[0] == 4321;
     }},
    {"DeviceScan-Exclusive", [] {
       Numbers h = input();
       int *x = to_device(h), *y = to_device(h);
       with_memory([&](void *m, size_t &b) { cub::DeviceScan::ExclusiveSum(m, b, x, y, COUNT); });
       return to_host(y, COUNT) == prefix_sums(h, false);
     }},
    {"DeviceScan-Inclusive", [] {
       Numbers h = input();
       int *x = to_device(h), *y = to_device(h);
       with_memory([&](void *m, size_t &b) { cub::DeviceScan::InclusiveSum(m, b, x, y, COUNT); });
       return to_host(y, COUNT) == prefix_sums(h, true);
     }},
    {"DeviceScan-ByKey", [] {
       Numbers k = runs(), h = input(), want(COUNT);
       for (int i = 0; i < COUNT; ++i) want[i] = i && k[i] == k[i - 1] ? want[i - 1] + h[i] : h[i];
       int *keys = to_device(k), *x = to_device(h), *y = to_device(h);
       with_memory([&](void *m, size_t &b) { cub::DeviceScan::InclusiveSumByKey(m, b, keys, x, y, COUNT); });
       return to_host(y, COUNT) == want;
     }},
    {"DeviceSelect-If", [] {
       Numbers h = input(), want;
       std::copy_if(h.begin(), h.end(), std::back_inserter(want), Odd());
       int *x = to_device(h), *y = to_device(h), *n = to_device({0});
       with_memory([&](void *m, size_t &b) { cub::DeviceSelect::If(m, b, x, y, n, COUNT, Odd()); });
       return to_host(n, 1)[0] == (int)want.size() && begins(to_host(y, COUNT), want);
     }},
    {"DeviceSelect-Unique", [] {
       Numbers h = runs(), want = unique_of(h);
       int *x = to_device(h), *y = to_device(h), *n = to_device({0});
       with_memory([&](void *m, size_t &b) { cub::DeviceSelect::Unique(m, b, x, y, n, COUNT); });
       return to_host(n, 1)[0] == (int)want.size() && begins(to_host(y, COUNT), want);
     }},
    {"DevicePartition-If", [] {
       Numbers h = input(), want;
       std::copy_if(h.begin(), h.end(), std::back_inserter(want), Odd());
       int *x = to_device(h), *y = to_device(h), *n = to_device({0});
       with_memory([&](void *m, size_t &b) { cub::DevicePartition::If(m, b, x, y, n, COUNT, Odd()); });
       return to_host(n, 1)[0] == (int)want.size() && begins(to_host(y, COUNT), want);
     }},
    {"DeviceRunLengthEncode", [] {
       Numbers h = runs(), want = unique_of(h);
       int *x = to_device(h), *y = to_device(h), *lengths = to_device(h), *n = to_device({0});
       with_memory([&](void *m, size_t &b) { cub::DeviceRunLengthEncode::Encode(m, b, x, y, lengths, n, COUNT); });
       Numbers found = to_host(lengths, want.size());
       return to_host(n, 1)[0] == (int)want.size() && begins(to_host(y, COUNT), want) &&
              std::accumulate(found.begin(), found.end(), 0) == COUNT && found[0] == 7;
     }},
    {"DeviceReduce-ByKey", [] {
       Numbers k = runs(), want = unique_of(k), ones(COUNT, 1);
       int *keys = to_device(k), *x = to_device(ones), *y = to_device(k), *sums = to_device(k), *n = to_device({0});
       with_memory([&](void *m, size_t &b) {
         cub::DeviceReduce::ReduceByKey(m, b, keys, y, x, sums, n, cuda::std::plus<>(), COUNT);
       });
       return to_host(n, 1)[0] == (int)want.size() && begins(to_host(y, COUNT), want) && to_host(sums, 1)[0] == 7;
     }},
#else
    {"DeviceRadixSort-Keys", [] {
       Numbers h = input();
       int *x = to_device(h), *y = to_device(h);
       with_memory([&](void *m, size_t &b) { cub::DeviceRadixSort::SortKeys(m, b, x, y, COUNT, 0, 8); });
       std::sort(h.begin(), h.end());
       return to_host(y, COUNT) == h;
     }},
    {"DeviceRadixSort-Pairs", [] {
       Numbers h = input(), v(COUNT);
       std::iota(v.begin(), v.end(), 0);
       int *x = to_device(h), *y = to_device(h), *in = to_device(v), *out = to_device(v);
       with_memory([&](void *m, size_t &b) { cub::DeviceRadixSort::SortPairs(m, b, x, y, in, out, COUNT, 0, 8); });
       std::stable_sort(v.begin(), v.end(), [&](int a, int b) { return h[a] < h[b]; });
       return to_host(out, COUNT) == v;
     }},
    {"DeviceMergeSort", [] {
       Numbers h = input();
       int *x = to_device(h);
       with_memory([&](void *m, size_t &b) { cub::DeviceMergeSort::SortKeys(m, b, x, COUNT, Less()); });
       std::sort(h.begin(), h.end());
       return to_host(x, COUNT) == h;
     }},
    {"DeviceHistogram", [] {
       Numbers h = input(), want(256);
       for (int v : h) ++want[v];
       int *x = to_device(h), *y = to_device(want);
       with_memory([&](void *m, size_t &b) { cub::DeviceHistogram::HistogramEven(m, b, x, y, 257, 0, 256, COUNT); });
       return to_host(y, 256) == want;
     }},
    {"DeviceSegmentedReduce", [] {
       Numbers h = input(), offsets(SEGMENTS + 1), want(SEGMENTS);
       for (int i = 0; i <= SEGMENTS; ++i) offsets[i] = i * COUNT / SEGMENTS;
       for (int i = 0; i < COUNT; ++i) want[i * SEGMENTS / COUNT] += h[i];
       int *x = to_device(h), *at = to_device(offsets), *y = to_device(want);
       with_memory([&](void *m, size_t &b) { cub::DeviceSegmentedReduce::Sum(m, b, x, y, SEGMENTS, at, at + 1); });
       return to_host(y, SEGMENTS) == want;
     }},
    {"DeviceTransform", [] {
       Numbers h = input();
       int *x = to_device(h), *y = to_device(h);
       cub::DeviceTransform::Transform(x, y, COUNT, Twice());
       for (int &v : h) v *= 2;
       return to_host(y, COUNT) == h;
     }},
    {"thrust-exclusive_scan", [] {
       Numbers h = input();
       thrust::device_ptr<int> x(to_device(h)), y(to_device(h));
       thrust::exclusive_scan(thrust::device, x, x + COUNT, y);
       return to_host(y.get(), COUNT) == prefix_sums(h, false);
     }},
    {"thrust-sort", [] {
       Numbers h = input();
       thrust::device_ptr<int> x(to_device(h));
       thrust::sort(thrust::device, x, x + COUNT);
       std::sort(h.begin(), h.end());
       return to_host(x.get(), COUNT) == h;
     }},
    {"thrust-reduce", [] {
       Numbers h = input();
       thrust::device_ptr<int> x(to_device(h));
       return thrust::reduce(thrust::device, x, x + COUNT) == std::accumulate(h.begin(), h.end(), 0);
     }},
    {"thrust-unique_copy", [] {
       Numbers h = runs(), want = unique_of(h);
       thrust::device_ptr<int> x(to_device(h)), y(to_device(h));
       int found = thrust::unique_copy(thrust::device, x, x + COUNT, y) - y;
       return found == (int)want.size() && begins(to_host(y.get(), COUNT), want);
     }},
#endif
};

int main(int count, char **words) {
  auto found = table.find(count > 1 ? words[1] : "");
  if (found == table.end()) {
    for (auto &entry : table) printf("%s\n", entry.first.c_str());
    return count > 1;
  }
  bool right = found->second();
  cudaError_t error = cudaDeviceSynchronize();
  printf("%s: %s\n", words[1], error ? cudaGetErrorString(error) : right ? "right" : "wrong");
  return error || !right;
}
