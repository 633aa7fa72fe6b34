; The thread pool: fork-join loops on threads that the host lends.
;
; A pool is zeroed memory of @tunefarm_pool_bytes() bytes, aligned to 128. Host threads call
; @tunefarm_worker_main(pool), which returns after @tunefarm_pool_shutdown(pool).
;
;   offset  what                                          written by
;        0  i32 generation: number of the current job     the caller that holds the lock
;      128  ptr body, ptr closure, i64 n, i64 parts, i64 grain, ptr scratch, i64 stride, i64 seats
;      256  i32 lock: 1 while a job or the shutdown runs   compare-and-swap
;      384  i32 sleeping workers                           workers
;      512  i64 done: iterations finished in this job      everyone
;      576  i32 caller: one more than the CPU that last woke sleeping workers
;      640  i32 workers, i32 stop, i64 spin ticks
;     1024  128 bytes a part: i64 claim = generation << 32 | iterations not yet claimed
;
; The iterations [0, n) are cut into one part a thread, always the same way, so that a thread finds
; the data of its last job in its cache. A thread claims grains of its own part and then what is
; left of the others'. A claim is a compare-and-swap on (generation, iterations left): a thread that
; was descheduled between two jobs finds another generation, or nothing left, and leaves. It may
; have read the next job's fields, but it acts on them only after a claim that proves its own job
; still open. The caller never waits for a thread that has not claimed something: if all workers
; sleep, it does the job alone while they wake.
;
; Linux often wakes a thread on the CPU of its waker, where it waits for the caller's work to end: a
; worker that wakes up there moves to another CPU that it may use.
;
; A job inside a job, or beside one of another thread, finds the lock taken and runs as a loop.
;
; Every thread has a number, 0 for the caller, that it keeps as long as the pool lives. An iteration
; is given the scratch memory of the thread that runs it: %stride bytes apart, for %seats threads.
; Those with higher numbers take no part.

define internal void @run_serial(ptr %body, ptr %closure, i64 %n, ptr %scratch) #0 {
entry:
  %none = icmp sle i64 %n, 0
  br i1 %none, label %exit, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void %body(ptr %closure, i64 %i, ptr %scratch)
  %next = add nuw i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %exit
exit:
  ret void
}

; Run what thread %own can claim of part %part; return the number of iterations run.
define internal i64 @run_part(ptr %pool, i64 %generation, i64 %part, i64 %own) #0 {
entry:
  %p.body = getelementptr i8, ptr %pool, i64 128
  %p.closure = getelementptr i8, ptr %pool, i64 136
  %p.n = getelementptr i8, ptr %pool, i64 144
  %p.parts = getelementptr i8, ptr %pool, i64 152
  %p.grain = getelementptr i8, ptr %pool, i64 160
  %p.scratch = getelementptr i8, ptr %pool, i64 168
  %p.stride = getelementptr i8, ptr %pool, i64 176
  %p.seats = getelementptr i8, ptr %pool, i64 184
  %body = load atomic ptr, ptr %p.body monotonic, align 8
  %closure = load atomic ptr, ptr %p.closure monotonic, align 8
  %n = load atomic i64, ptr %p.n monotonic, align 8
  %parts = load atomic i64, ptr %p.parts monotonic, align 8
  %grain = load atomic i64, ptr %p.grain monotonic, align 8
  %scratch.first = load atomic ptr, ptr %p.scratch monotonic, align 8
  %stride = load atomic i64, ptr %p.stride monotonic, align 8
  %seats = load atomic i64, ptr %p.seats monotonic, align 8
  %scratch.offset = mul i64 %own, %stride
  %scratch = getelementptr i8, ptr %scratch.first, i64 %scratch.offset
  %part.next = add i64 %part, 1
  %end.n = mul i64 %part.next, %n
  %end = udiv i64 %end.n, %parts
  %line = shl i64 %part, 7
  %line.offset = add i64 %line, 1024
  %claim = getelementptr i8, ptr %pool, i64 %line.offset
  %tag = shl i64 %generation, 32
  %seated = icmp ult i64 %own, %seats
  br i1 %seated, label %look, label %exit
look:
  %ran = phi i64 [ 0, %entry ], [ %ran, %lost ], [ %ran.new, %ran.done ]
  %word = load atomic i64, ptr %claim acquire, align 8
  %word.high = lshr i64 %word, 32
  %current = icmp eq i64 %word.high, %generation
  %left = and i64 %word, 4294967295
  %some = icmp ne i64 %left, 0
  %take = and i1 %current, %some
  br i1 %take, label %try, label %exit
try:
  %small = icmp ult i64 %left, %grain
  %count = select i1 %small, i64 %left, i64 %grain
  %left.new = sub i64 %left, %count
  %word.new = or i64 %tag, %left.new
  %pair = cmpxchg ptr %claim, i64 %word, i64 %word.new acq_rel monotonic, align 8
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %run, label %lost
lost:
  br label %look
run:
  %first = sub i64 %end, %left
  %last = sub i64 %end, %left.new
  br label %iterate
iterate:
  %i = phi i64 [ %first, %run ], [ %i.next, %iterate ]
  call void %body(ptr %closure, i64 %i, ptr %scratch)
  %i.next = add i64 %i, 1
  %again = icmp ult i64 %i.next, %last
  br i1 %again, label %iterate, label %ran.done
ran.done:
  %ran.new = add i64 %ran, %count
  br label %look
exit:
  %ran.all = phi i64 [ 0, %entry ], [ %ran, %look ]
  ret i64 %ran.all
}

; Run part %own and then every other part, and add what was run to the job's count.
define internal void @run_parts(ptr %pool, i64 %generation, i64 %own) #0 {
entry:
  %p.parts = getelementptr i8, ptr %pool, i64 152
  %parts = load atomic i64, ptr %p.parts monotonic, align 8
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %k.next, %loop ]
  %ran = phi i64 [ 0, %entry ], [ %ran.new, %loop ]
  %shifted = add i64 %own, %k
  %part = urem i64 %shifted, %parts
  %count = call i64 @run_part(ptr %pool, i64 %generation, i64 %part, i64 %own)
  %ran.new = add i64 %ran, %count
  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, %parts
  br i1 %more, label %loop, label %finish
finish:
  %some = icmp ne i64 %ran.new, 0
  br i1 %some, label %report, label %exit
report:
  %p.done = getelementptr i8, ptr %pool, i64 512
  %before = atomicrmw add ptr %p.done, i64 %ran.new acq_rel, align 8
  br label %exit
exit:
  ret void
}

; The CPU that runs the calling thread; -1 if the system does not tell.
define internal i32 @own_cpu() #0 {
entry:
  %slot = alloca i32, align 8
  store i32 -1, ptr %slot, align 8
  %address = ptrtoint ptr %slot to i64
  %told = call i64 @cpu_syscall(i64 {getcpu}, i64 %address, i64 0, i64 0, i64 0, i64 0, i64 0)
  %cpu = load i32, ptr %slot, align 8
  ret i32 %cpu
}

; Move the calling thread to another CPU if it runs on the one of the caller of the present job.
define internal void @move_apart(ptr %pool) #0 {
entry:
  %allowed = alloca [16 x i64], align 16
  %others = alloca [16 x i64], align 16
  %p.caller = getelementptr i8, ptr %pool, i64 576
  %caller = load atomic i32, ptr %p.caller monotonic, align 4
  %cpu = call i32 @own_cpu()
  %next.cpu = add i32 %cpu, 1
  %beside = icmp eq i32 %next.cpu, %caller
  %known = icmp ult i32 %cpu, 1024
  %stacked = and i1 %beside, %known
  br i1 %stacked, label %ask, label %exit
ask:
  %allowed.at = ptrtoint ptr %allowed to i64
  %others.at = ptrtoint ptr %others to i64
  %size = call i64 @cpu_syscall(i64 {sched_getaffinity}, i64 0, i64 128, i64 %allowed.at, i64 0, i64 0, i64 0)
  %told = icmp sgt i64 %size, 0
  br i1 %told, label %copy, label %exit
copy:
  %at = phi i64 [ 0, %ask ], [ %at.next, %copy ]
  %p.from = getelementptr i8, ptr %allowed, i64 %at
  %p.to = getelementptr i8, ptr %others, i64 %at
  %word = load i64, ptr %p.from, align 8
  store i64 %word, ptr %p.to, align 8
  %at.next = add i64 %at, 8
  %more = icmp ult i64 %at.next, %size
  br i1 %more, label %copy, label %move
move:
  %cpu.wide = zext i32 %cpu to i64
  %number = lshr i64 %cpu.wide, 6
  %bit = and i64 %cpu.wide, 63
  %p.own = getelementptr i64, ptr %others, i64 %number
  %own = load i64, ptr %p.own, align 8
  %one = shl i64 1, %bit
  %not.one = xor i64 %one, -1
  %rest = and i64 %own, %not.one
  store i64 %rest, ptr %p.own, align 8
  %moved = call i64 @cpu_syscall(i64 {sched_setaffinity}, i64 0, i64 %size, i64 %others.at, i64 0, i64 0, i64 0)
  %freed = call i64 @cpu_syscall(i64 {sched_setaffinity}, i64 0, i64 %size, i64 %allowed.at, i64 0, i64 0, i64 0)
  br label %exit
exit:
  ret void
}

; Publish generation + 1 and wake up to %count sleeping workers.
define internal void @publish(ptr %pool, i32 %generation, i64 %count) #0 {
entry:
  %p.sleeping = getelementptr i8, ptr %pool, i64 384
  store atomic i32 %generation, ptr %pool seq_cst, align 4
  %sleeping = load atomic i32, ptr %p.sleeping seq_cst, align 4
  %some = icmp ne i32 %sleeping, 0
  br i1 %some, label %wake, label %exit
wake:
  %p.caller = getelementptr i8, ptr %pool, i64 576
  %cpu = call i32 @own_cpu()
  %caller = add i32 %cpu, 1
  store atomic i32 %caller, ptr %p.caller monotonic, align 4
  %address = ptrtoint ptr %pool to i64
  %woken = call i64 @cpu_syscall(i64 {futex}, i64 %address, i64 129, i64 %count, i64 0, i64 0, i64 0)
  br label %exit
exit:
  ret void
}

; Run body(closure, i, scratch + stride × thread) for every i in [0, n) and return when all are done;
; no more than %seats threads take part.
define void @tunefarm_parallel(ptr %pool, ptr %body, ptr %closure, i64 %n, ptr %scratch, i64 %stride, i64 %seats) #0 {
entry:
  %no.pool = icmp eq ptr %pool, null
  %few = icmp slt i64 %n, 2
  %many = icmp sgt i64 %n, 2147483647
  %odd = or i1 %few, %many
  %plain = or i1 %no.pool, %odd
  br i1 %plain, label %serial, label %check
check:
  %p.workers = getelementptr i8, ptr %pool, i64 640
  %workers = load atomic i32, ptr %p.workers acquire, align 4
  %alone = icmp eq i32 %workers, 0
  br i1 %alone, label %serial, label %acquire
acquire:
  %p.lock = getelementptr i8, ptr %pool, i64 256
  %locked = cmpxchg ptr %p.lock, i32 0, i32 1 acquire monotonic, align 4
  %got = extractvalue { i32, i1 } %locked, 1
  br i1 %got, label %prepare, label %serial
serial:
  call void @run_serial(ptr %body, ptr %closure, i64 %n, ptr %scratch)
  ret void
prepare:
  %p.body = getelementptr i8, ptr %pool, i64 128
  %p.closure = getelementptr i8, ptr %pool, i64 136
  %p.n = getelementptr i8, ptr %pool, i64 144
  %p.parts = getelementptr i8, ptr %pool, i64 152
  %p.grain = getelementptr i8, ptr %pool, i64 160
  %p.scratch = getelementptr i8, ptr %pool, i64 168
  %p.stride = getelementptr i8, ptr %pool, i64 176
  %p.seats = getelementptr i8, ptr %pool, i64 184
  %p.done = getelementptr i8, ptr %pool, i64 512
  %workers.wide = zext i32 %workers to i64
  %threads = add i64 %workers.wide, 1
  %too.many = icmp ugt i64 %threads, {max_parts}
  %threads.kept = select i1 %too.many, i64 {max_parts}, i64 %threads
  %limited = icmp ult i64 %seats, %threads.kept
  %threads.seated = select i1 %limited, i64 %seats, i64 %threads.kept
  %fewer = icmp slt i64 %n, %threads.seated
  %parts = select i1 %fewer, i64 %n, i64 %threads.seated
  %slices = shl i64 %parts, 5
  %grain.exact = udiv i64 %n, %slices
  %grain.zero = icmp eq i64 %grain.exact, 0
  %grain = select i1 %grain.zero, i64 1, i64 %grain.exact
  %old = load atomic i32, ptr %pool monotonic, align 4
  %new = add i32 %old, 1
  %generation = zext i32 %new to i64
  %tag = shl i64 %generation, 32
  store atomic ptr %body, ptr %p.body monotonic, align 8
  store atomic ptr %closure, ptr %p.closure monotonic, align 8
  store atomic i64 %n, ptr %p.n monotonic, align 8
  store atomic i64 %parts, ptr %p.parts monotonic, align 8
  store atomic i64 %grain, ptr %p.grain monotonic, align 8
  store atomic ptr %scratch, ptr %p.scratch monotonic, align 8
  store atomic i64 %stride, ptr %p.stride monotonic, align 8
  store atomic i64 %seats, ptr %p.seats monotonic, align 8
  store atomic i64 0, ptr %p.done monotonic, align 8
  br label %open
open:
  %part = phi i64 [ 0, %prepare ], [ %part.next, %open ]
  %line = shl i64 %part, 7
  %line.offset = add i64 %line, 1024
  %claim = getelementptr i8, ptr %pool, i64 %line.offset
  %part.next = add i64 %part, 1
  %begin.n = mul i64 %part, %n
  %end.n = mul i64 %part.next, %n
  %begin = udiv i64 %begin.n, %parts
  %end = udiv i64 %end.n, %parts
  %length = sub i64 %end, %begin
  %word = or i64 %tag, %length
  store atomic i64 %word, ptr %claim release, align 8
  %more = icmp ult i64 %part.next, %parts
  br i1 %more, label %open, label %start
start:
  %helpers.parts = sub i64 %parts, 1
  %helpers = select i1 %limited, i64 %workers.wide, i64 %helpers.parts ; any that sleep may be seated
  call void @publish(ptr %pool, i32 %new, i64 %helpers)
  call void @run_parts(ptr %pool, i64 %generation, i64 0)
  br label %wait
wait:
  %spins = phi i32 [ 0, %start ], [ %spins.next, %again ]
  %done = load atomic i64, ptr %p.done acquire, align 8
  %finished = icmp eq i64 %done, %n
  br i1 %finished, label %release, label %patience
patience:
  %spins.next = add i32 %spins, 1
  %long = icmp ugt i32 %spins.next, 512
  br i1 %long, label %yield, label %spin
spin:
  call void @cpu_pause()
  br label %again
yield:
  %yielded = call i64 @cpu_syscall(i64 {sched_yield}, i64 0, i64 0, i64 0, i64 0, i64 0, i64 0)
  br label %again
again:
  br label %wait
release:
  store atomic i32 0, ptr %p.lock release, align 4
  ret void
}

; Wait until the generation differs from %seen; return it. Spins first, then sleeps.
define internal i32 @await_job(ptr %pool, i32 %seen) #0 {
entry:
  %p.sleeping = getelementptr i8, ptr %pool, i64 384
  %p.spin = getelementptr i8, ptr %pool, i64 648
  %t0 = call i64 @cpu_ticks()
  br label %spin
spin:
  %g = load atomic i32, ptr %pool acquire, align 4
  %changed = icmp ne i32 %g, %seen
  br i1 %changed, label %exit, label %count
count:
  call void @cpu_pause()
  %limit = load atomic i64, ptr %p.spin monotonic, align 8
  %t1 = call i64 @cpu_ticks()
  %spent = sub i64 %t1, %t0
  %tired = icmp ugt i64 %spent, %limit
  br i1 %tired, label %sleep, label %spin
sleep:
  %was = atomicrmw add ptr %p.sleeping, i32 1 seq_cst, align 4
  %address = ptrtoint ptr %pool to i64
  %value = zext i32 %seen to i64
  %slept = call i64 @cpu_syscall(i64 {futex}, i64 %address, i64 128, i64 %value, i64 0, i64 0, i64 0)
  %is = atomicrmw sub ptr %p.sleeping, i32 1 seq_cst, align 4
  br label %look
look:
  %h = load atomic i32, ptr %pool acquire, align 4
  %woken = icmp ne i32 %h, %seen
  br i1 %woken, label %apart, label %sleep
apart:
  call void @move_apart(ptr %pool)
  br label %exit
exit:
  %result = phi i32 [ %g, %spin ], [ %h, %apart ]
  ret i32 %result
}

; What a host thread runs: join the pool, take part in every job, return at the shutdown.
define void @tunefarm_worker_main(ptr %pool) #0 {
entry:
  %p.workers = getelementptr i8, ptr %pool, i64 640
  %p.stop = getelementptr i8, ptr %pool, i64 644
  %start = load atomic i32, ptr %pool acquire, align 4
  %early = load atomic i32, ptr %p.stop acquire, align 4
  %late = icmp ne i32 %early, 0
  br i1 %late, label %exit, label %join
join:
  %before = atomicrmw add ptr %p.workers, i32 1 acq_rel, align 4
  %own32 = add i32 %before, 1
  %own = zext i32 %own32 to i64
  br label %wait
wait:
  %seen = phi i32 [ %start, %join ], [ %g, %work ]
  %g = call i32 @await_job(ptr %pool, i32 %seen)
  %stop = load atomic i32, ptr %p.stop acquire, align 4
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %leave, label %work
work:
  %generation = zext i32 %g to i64
  call void @run_parts(ptr %pool, i64 %generation, i64 %own)
  br label %wait
leave:
  %left = atomicrmw sub ptr %p.workers, i32 1 acq_rel, align 4
  br label %exit
exit:
  ret void
}

; Let every worker return, after the job that runs now. The pool runs loops serially afterwards.
define void @tunefarm_pool_shutdown(ptr %pool) #0 {
entry:
  %p.lock = getelementptr i8, ptr %pool, i64 256
  %p.stop = getelementptr i8, ptr %pool, i64 644
  br label %acquire
acquire:
  %locked = cmpxchg ptr %p.lock, i32 0, i32 1 acquire monotonic, align 4
  %got = extractvalue { i32, i1 } %locked, 1
  br i1 %got, label %stop, label %busy
busy:
  %yielded = call i64 @cpu_syscall(i64 {sched_yield}, i64 0, i64 0, i64 0, i64 0, i64 0, i64 0)
  br label %acquire
stop:
  store atomic i32 1, ptr %p.stop release, align 4
  %old = load atomic i32, ptr %pool monotonic, align 4
  %new = add i32 %old, 1
  call void @publish(ptr %pool, i32 %new, i64 2147483647)
  ret void
}

; Workers that have joined and not left.
define i32 @tunefarm_pool_workers(ptr %pool) #0 {
  %p.workers = getelementptr i8, ptr %pool, i64 640
  %workers = load atomic i32, ptr %p.workers acquire, align 4
  ret i32 %workers
}

; Set how long an idle worker spins before it sleeps, in ticks of the clock; return what it was.
define i64 @tunefarm_pool_spin(ptr %pool, i64 %ticks) #0 {
  %p.spin = getelementptr i8, ptr %pool, i64 648
  %was = atomicrmw xchg ptr %p.spin, i64 %ticks monotonic, align 8
  ret i64 %was
}
