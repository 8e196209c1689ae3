// Thrust on the device: sort by key, scan, reduce by key, transform with a device lambda, unique, partition, search.
// The same steps with the host's standard library give the expected results.
#include "check.h"

#include <algorithm>
#include <numeric>
#include <thrust/binary_search.h>
#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/partition.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/transform_reduce.h>
#include <thrust/unique.h>
#include <vector>

template <class T> static std::vector<T> on_host(const thrust::device_vector<T> &from) {
    std::vector<T> to(from.size());
    thrust::copy(from.begin(), from.end(), to.begin());
    return to;
}

static void sorting(const std::vector<int> &keys) {
    const int n = int(keys.size());
    thrust::device_vector<int> k(keys), order(thrust::make_counting_iterator(0), thrust::make_counting_iterator(n));
    thrust::stable_sort_by_key(k.begin(), k.end(), order.begin());
    std::vector<int> wanted(n), got = on_host(order);
    std::iota(wanted.begin(), wanted.end(), 0);
    std::stable_sort(wanted.begin(), wanted.end(), [&](int a, int b) { return keys[a] < keys[b]; });
    CHECK(got == wanted, "the order of %d keys", n);
    // Reduced by key: how often each occurs.
    thrust::device_vector<int> ones(n, 1), which(n), counts(n);
    auto ends = thrust::reduce_by_key(k.begin(), k.end(), ones.begin(), which.begin(), counts.begin());
    int distinct = int(ends.first - which.begin());
    for (int i = 0; i < distinct; i++) {
        int key = which[i], count = counts[i];
        CHECK_QUIETLY(std::count(keys.begin(), keys.end(), key) == count, "key %d occurs %d times", key, count);
    }
    auto end = thrust::unique(k.begin(), k.end());
    CHECK(end - k.begin() == distinct, "%d distinct keys", int(end - k.begin()));
    thrust::device_vector<int> at(3), wanted_keys(std::vector<int>{-1, keys[5], 100000});
    thrust::lower_bound(k.begin(), end, wanted_keys.begin(), wanted_keys.end(), at.begin());
    CHECK(at[0] == 0 && k[at[1]] == keys[5] && at[2] == distinct, "bounds %d %d %d", int(at[0]), int(at[1]), int(at[2]));
}

static void sums(const std::vector<int> &numbers) {
    thrust::device_vector<int> n(numbers), scanned(numbers.size());
    thrust::exclusive_scan(n.begin(), n.end(), scanned.begin(), 100);
    std::vector<int> wanted(numbers.size()), got = on_host(scanned);
    std::exclusive_scan(numbers.begin(), numbers.end(), wanted.begin(), 100);
    CHECK(got == wanted, "an exclusive scan");
    int factor = 3;
    auto square = [factor] __device__(int x) -> long long { return (long long)x * x * factor; };
    long long total = thrust::transform_reduce(n.begin(), n.end(), square, 0ll, thrust::plus<long long>());
    long long wanted_total = 0;
    for (int x : numbers) wanted_total += (long long)x * x * factor;
    CHECK(total == wanted_total, "%lld, wanted %lld", total, wanted_total);
    auto middle = thrust::stable_partition(n.begin(), n.end(), [] __device__(int x) -> bool { return x % 3 == 0; });
    std::vector<int> parted = on_host(n), wanted_parts = numbers;
    auto wanted_middle = std::stable_partition(wanted_parts.begin(), wanted_parts.end(), [](int x) { return x % 3 == 0; });
    CHECK(parted == wanted_parts && middle - n.begin() == wanted_middle - wanted_parts.begin(), "a partition");
    int highest = *thrust::max_element(n.begin(), n.end());
    CHECK(highest == *std::max_element(numbers.begin(), numbers.end()), "highest %d", highest);
}

int main() {
    Numbers source(12);
    std::vector<int> numbers(3000);
    for (int &x : numbers) x = int(source.below(700));
    sorting(numbers);
    sums(numbers);
    thrust::device_vector<double> reals(1000);
    thrust::sequence(reals.begin(), reals.end(), 0.5);
    thrust::sort(reals.begin(), reals.end(), thrust::greater<double>());
    CHECK(reals[0] == 999.5 && reals[999] == 0.5, "%g to %g", double(reals[0]), double(reals[999]));
    printf("%zu numbers sorted, counted, scanned, partitioned and searched\n", numbers.size());
    return finish("thrust_algorithms");
}
