! Every collective that the library serves, by one of the three ways in which Fortran knows MPI (-DWAY=1, 2, 3: mpif.h,
! the module mpi, the module mpi_f08), out of place and in place, and one from the bottom of memory. Prints "right", or
! what was wrong.
#if WAY == 3
#define COMMUNICATOR type(MPI_Comm)
#else
#define COMMUNICATOR integer
#endif
program collectives
#if WAY == 2
  use mpi
#elif WAY == 3
  use mpi_f08
#endif
  implicit none
#if WAY == 1
  include 'mpif.h'
#endif
  integer, parameter :: n = 1000
  integer :: rank, ranks, error, wrong, all_wrong, i, given
  COMMUNICATOR :: other
  integer, allocatable :: counts(:), places(:)
  double precision, allocatable :: a(:), b(:), w(:)
  real :: small(3), sums(3)

  call MPI_Init_thread(MPI_THREAD_FUNNELED, given, error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  call MPI_Comm_dup(MPI_COMM_WORLD, other, error)
  allocate(a(n * ranks), b(n * ranks), w(n * ranks), counts(ranks), places(ranks))
  counts = n
  wrong = 0

  a = [(dble(rank * 7 + i), i = 1, n * ranks)]
  w = [(dble(7 * ranks * (ranks - 1) / 2 + ranks * i), i = 1, n * ranks)]
  call MPI_Allreduce(a, b, n * ranks, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
  call check('allreduce', n * ranks)
  b = a
  call MPI_Allreduce(MPI_IN_PLACE, b, n * ranks, MPI_DOUBLE_PRECISION, MPI_SUM, other, error)
  call check('allreduce in place', n * ranks)
  b = 0
  call MPI_Reduce(a, b, n, MPI_DOUBLE_PRECISION, MPI_SUM, 1, MPI_COMM_WORLD, error)
  if (rank == 1) call check('reduce', n)
  b = 0
  call MPI_Reduce_scatter_block(a, b, n, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
  w(1:n) = [(dble(7 * ranks * (ranks - 1) / 2 + ranks * (n * rank + i)), i = 1, n)]
  call check('reduce_scatter_block', n)
  b = 0
  call MPI_Reduce_scatter(a, b, counts, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
  call check('reduce_scatter', n)
  b = a
  call MPI_Bcast(b, n, MPI_DOUBLE_PRECISION, 2, MPI_COMM_WORLD, error)
  w(1:n) = [(dble(2 * 7 + i), i = 1, n)]
  call check('bcast', n)
  b = 0
  call MPI_Allgather(a, n, MPI_DOUBLE_PRECISION, b, n, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, error)
  w = [(dble((i - 1) / n * 7 + mod(i - 1, n) + 1), i = 1, n * ranks)]
  call check('allgather', n * ranks)
  b = 0
  b(n * rank + 1 : n * rank + n) = a(1:n)
  call MPI_Allgather(MPI_IN_PLACE, n, MPI_DOUBLE_PRECISION, b, n, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, error)
  call check('allgather in place', n * ranks)
  b = 0
  call MPI_Gather(a, n, MPI_DOUBLE_PRECISION, b, n, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, error)
  if (rank == 0) call check('gather', n * ranks)
  b = 0
  call MPI_Alltoall(a, n, MPI_DOUBLE_PRECISION, b, n, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, error)
  w = [(dble((i - 1) / n * 7 + n * rank + mod(i - 1, n) + 1), i = 1, n * ranks)]
  call check('alltoall', n * ranks)
  b = 0
  call MPI_Scatter(a, n, MPI_DOUBLE_PRECISION, b, n, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, error)
  w(1:n) = [(dble(n * rank + i), i = 1, n)]
  call check('scatter', n)
  places = [(n * (i - 1), i = 1, ranks)]
  w = [(dble((i - 1) / n * 7 + mod(i - 1, n) + 1), i = 1, n * ranks)]
  b = 0
  call MPI_Allgatherv(a, n, MPI_DOUBLE_PRECISION, b, counts, places, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, error)
  call check('allgatherv', n * ranks)
  small = [1.0, 2.0, 3.0] + real(rank)
#if WAY == 3
  call MPI_Allreduce(small, sums, 3, MPI_REAL, MPI_MAX, MPI_COMM_WORLD) ! nobody asks for the error
#else
  call MPI_Allreduce(small, sums, 3, MPI_REAL, MPI_MAX, MPI_COMM_WORLD, error)
#endif
  if (any(sums /= [1.0, 2.0, 3.0] + real(ranks - 1))) wrong = wrong + 1

  call MPI_Allreduce(wrong, all_wrong, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
  call MPI_Comm_free(other, error)
  if (rank == 0 .and. all_wrong == 0) print '(A)', 'right'
  call MPI_Finalize(error)
contains
  subroutine check(what, many)
    character(*), intent(in) :: what
    integer, intent(in) :: many
    if (error /= MPI_SUCCESS .or. any(b(1:many) /= w(1:many))) then
      print '(A,I0,A,A)', 'rank ', rank, ': wrong: ', what
      wrong = wrong + 1
    end if
  end subroutine
end program
