#include <cstdio>
#include <cassert>
__device__ int counter = 3;
static __device__ float table[100];
__constant__ int limits[4] = {1,2,3,4};
static __constant__ double hidden[2];
__device__ __managed__ int man = 9;
typedef void (*fn)(int*);
__device__ void one(int*p){*p=1;} 
__device__ fn fns[2] = {one, one};
struct S { virtual __device__ int f(){return counter;} int x; };
__device__ S* obj;
__global__ void k(int*p,int n){ static __shared__ int s[32]; static int calls; s[threadIdx.x]=n; __syncthreads(); calls++; assert(n>2); printf("%d %s\n",calls,"hello"); p[0]=s[1]+table[n]+limits[n]+hidden[n]+man+calls; obj=new S; p[1]=obj->f(); fns[n](p); table[n]=2; }
