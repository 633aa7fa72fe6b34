; The thread pool: fork-join loops on threads that the host lends.
;
; A pool is zeroed memory of @tunefarm_pool_bytes() bytes, aligned to 128. Host threads call
; @tunefarm_worker_main(pool), which returns after @tunefarm_pool_shutdown(pool).
;
;   offset  what                                                            written by
;        0  i64 generation of the job, ptr body, ptr closure, ptr scratch,  the caller that holds
;           i64 stride, i32 n, i32 parts, i32 seats, i32 mode               the lock, the shutdown
;      128  i32 lock: 1 while a job or the shutdown runs                    compare-and-swap
;      136  i64 done before the present job                                 the lock's holder
;      256  i32 sleeping workers                                            workers
;      384  i64 done: iterations that workers finished in all jobs          workers
;      512  i32 caller: one more than the CPU that last woke workers        the lock's holder
;      640  i32 workers, i32 stop, i64 spin ticks                           anyone
;     1024  128 bytes a part: i64 claim = generation << 16 | first << 8 | last
;
; What cores tell each other costs most of a short job: a line that another core wrote comes after
; 0.05 µs, or 0.25 where they share no cache. So a job is told by one line, which workers look at
; while they wait: its generation is odd while the caller writes the rest and when no job is open,
; and who finds the same even number before and after has read one job. (That of the first is
; written under 0, which no worker takes for new.) No part is set up: a claim of an older generation
; stands for all of the part. Only workers count what they did, and the number grows for ever.
;
; The iterations [0, n) are cut into one part a thread, always the same way, so that a thread finds
; the data of its last job in its cache, and a part into at most 128 grains. A thread claims the
; first half of what is left of its own part, then half of the rest; others take halves from its
; end, so that a thread that is descheduled holds up half of its part at most. A claim is a
; compare-and-swap on (generation, grains left): whoever was descheduled between two jobs finds
; another generation, or nothing left, and leaves. The caller's first half is claimed before the
; others hear of the job.
;
; Nobody but a caller that had to wake others looks at another's part before a moment has passed:
; its owner then has to fetch the line again. The caller never waits for a thread that has not
; claimed something: if all workers sleep, it does the job alone while they wake. A worker may fall
; asleep as a job is told, and miss it: iterations must not wait for each other.
;
; Linux often wakes a thread on the CPU of its waker, where it waits for the caller's work to end: a
; worker that wakes up there moves to another CPU that it may use.
;
; Workers compute with floats as the caller does: its mode is part of the job, and 0, which changes
; nothing, where processors do not tell theirs.
;
; A job inside a job, or beside one of another thread, finds the lock taken and runs as a loop.
;
; Every thread has a number, 0 for the caller, that it keeps as long as the pool lives. An iteration
; is given the scratch memory of the thread that runs it: %stride bytes apart, for %seats threads.
; Those with higher numbers take no part.

; body, closure, scratch, stride, n, parts, seats, and of workers the caller's mode of floats
%Job = type { ptr, ptr, ptr, i64, i64, i64, i64, i32 }

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

; How many iterations a grain has.
define internal i64 @grain_of(i64 %n, i64 %parts) #0 {
entry:
  %slices = shl i64 %parts, 6
  %few = icmp ult i64 %n, %slices
  br i1 %few, label %one, label %many
one:
  ret i64 1
many:
  %grain = udiv i64 %n, %slices
  ret i64 %grain
}

; How many grains %length iterations are: at most 128 of a part.
define internal i64 @grains_of(i64 %length, i64 %grain) #0 {
entry:
  %single = icmp eq i64 %grain, 1
  br i1 %single, label %one, label %many
one:
  ret i64 %length
many:
  %less = sub i64 %grain, 1
  %up = add i64 %length, %less
  %grains = udiv i64 %up, %grain
  ret i64 %grains
}

; The word of a claim of which grains [%first, %last) are left.
define internal i64 @claim_word(i64 %generation, i64 %first, i64 %last) #0 {
  %high = shl i64 %generation, 16
  %middle = shl i64 %first, 8
  %low = or i64 %middle, %last
  %word = or i64 %high, %low
  ret i64 %word
}

; Claim half of what is left of the %grains of part %part: { first, last }, the same if nothing is.
; The front half of one's own part, the back half of another's.
define internal { i64, i64 } @claim(ptr %pool, i64 %generation, i64 %part, i64 %grains, i1 %mine) #0 {
entry:
  %line = shl i64 %part, 7
  %line.offset = add i64 %line, 1024
  %place = getelementptr i8, ptr %pool, i64 %line.offset
  br label %look
look:
  %word = load atomic i64, ptr %place acquire, align 8
  %told = lshr i64 %word, 16
  %newer = icmp ugt i64 %told, %generation
  %current = icmp eq i64 %told, %generation
  %shifted = lshr i64 %word, 8
  %first.told = and i64 %shifted, 255
  %last.told = and i64 %word, 255
  %first = select i1 %current, i64 %first.told, i64 0
  %last = select i1 %current, i64 %last.told, i64 %grains
  %empty = icmp uge i64 %first, %last
  %leave = or i1 %newer, %empty
  br i1 %leave, label %none, label %try
try:
  %left = sub i64 %last, %first
  %up = add i64 %left, 1
  %half = lshr i64 %up, 1
  %above = add i64 %first, %half
  %below = sub i64 %last, %half
  %taken.first = select i1 %mine, i64 %first, i64 %below
  %taken.last = select i1 %mine, i64 %above, i64 %last
  %rest.first = select i1 %mine, i64 %above, i64 %first
  %rest.last = select i1 %mine, i64 %last, i64 %below
  %word.new = call i64 @claim_word(i64 %generation, i64 %rest.first, i64 %rest.last)
  %pair = cmpxchg ptr %place, i64 %word, i64 %word.new acq_rel monotonic, align 8
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %taken, label %look
taken:
  %range.first = insertvalue { i64, i64 } poison, i64 %taken.first, 0
  %range = insertvalue { i64, i64 } %range.first, i64 %taken.last, 1
  ret { i64, i64 } %range
none:
  ret { i64, i64 } zeroinitializer
}

; Run the iterations of grains [%first, %last) of a part that begins at %begin and ends at %end on
; thread %own; return their number.
define internal i64 @run_grains(ptr %job, i64 %own, i64 %begin, i64 %end, i64 %grain, i64 %first, i64 %last) #0 {
entry:
  %p.body = getelementptr %Job, ptr %job, i32 0, i32 0
  %p.closure = getelementptr %Job, ptr %job, i32 0, i32 1
  %p.scratch = getelementptr %Job, ptr %job, i32 0, i32 2
  %p.stride = getelementptr %Job, ptr %job, i32 0, i32 3
  %body = load ptr, ptr %p.body
  %closure = load ptr, ptr %p.closure
  %scratch.first = load ptr, ptr %p.scratch
  %stride = load i64, ptr %p.stride
  %scratch.offset = mul i64 %own, %stride
  %scratch = getelementptr i8, ptr %scratch.first, i64 %scratch.offset
  %from.offset = mul i64 %first, %grain
  %to.offset = mul i64 %last, %grain
  %from = add i64 %begin, %from.offset
  %to.whole = add i64 %begin, %to.offset
  %beyond = icmp ugt i64 %to.whole, %end
  %to = select i1 %beyond, i64 %end, i64 %to.whole
  br label %iterate
iterate:
  %i = phi i64 [ %from, %entry ], [ %i.next, %iterate ]
  call void %body(ptr %closure, i64 %i, ptr %scratch)
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %to
  br i1 %more, label %iterate, label %exit
exit:
  %count = sub i64 %to, %from
  ret i64 %count
}

; Run what thread %own can claim of part %part; return the number of iterations run.
define internal i64 @run_part(ptr %pool, ptr %job, i64 %generation, i64 %own, i64 %part) #0 {
entry:
  %p.n = getelementptr %Job, ptr %job, i32 0, i32 4
  %p.parts = getelementptr %Job, ptr %job, i32 0, i32 5
  %n = load i64, ptr %p.n
  %parts = load i64, ptr %p.parts
  %mine = icmp eq i64 %own, %part
  %begin.scaled = mul i64 %part, %n
  %begin = udiv i64 %begin.scaled, %parts
  %end.scaled = add i64 %begin.scaled, %n
  %end = udiv i64 %end.scaled, %parts
  %length = sub i64 %end, %begin
  %grain = call i64 @grain_of(i64 %n, i64 %parts)
  %grains = call i64 @grains_of(i64 %length, i64 %grain)
  br label %claim
claim:
  %ran = phi i64 [ 0, %entry ], [ %ran.new, %run ]
  %range = call { i64, i64 } @claim(ptr %pool, i64 %generation, i64 %part, i64 %grains, i1 %mine)
  %first = extractvalue { i64, i64 } %range, 0
  %last = extractvalue { i64, i64 } %range, 1
  %some = icmp ne i64 %first, %last
  br i1 %some, label %run, label %exit
run:
  %count = call i64 @run_grains(ptr %job, i64 %own, i64 %begin, i64 %end, i64 %grain, i64 %first, i64 %last)
  %ran.new = add i64 %ran, %count
  br label %claim
exit:
  ret i64 %ran
}

; Run what is left of the parts, from %own on; return the number of iterations run.
define internal i64 @run_rest(ptr %pool, ptr %job, i64 %generation, i64 %own) #0 {
entry:
  %p.parts = getelementptr %Job, ptr %job, i32 0, i32 5
  %parts = load i64, ptr %p.parts
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %k.next, %loop ]
  %ran = phi i64 [ 0, %entry ], [ %ran.new, %loop ]
  %shifted = add i64 %own, %k
  %part = urem i64 %shifted, %parts
  %count = call i64 @run_part(ptr %pool, ptr %job, i64 %generation, i64 %own, i64 %part)
  %ran.new = add i64 %ran, %count
  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, %parts
  br i1 %more, label %loop, label %exit
exit:
  ret i64 %ran.new
}

; What a worker does of the job of %generation, if that is open.
define internal void @work(ptr %pool, i64 %generation, i64 %own) #0 {
entry:
  %job = alloca %Job, align 8
  %open = call i1 @read_job(ptr %pool, ptr %job, i64 %generation)
  %p.parts = getelementptr %Job, ptr %job, i32 0, i32 5
  %p.seats = getelementptr %Job, ptr %job, i32 0, i32 6
  %parts = load i64, ptr %p.parts
  %seats = load i64, ptr %p.seats
  %has.seat = icmp ult i64 %own, %seats
  %takes.part = and i1 %open, %has.seat
  br i1 %takes.part, label %begin, label %exit
begin:
  %p.mode = getelementptr %Job, ptr %job, i32 0, i32 7
  %mode = load i32, ptr %p.mode
  call void @cpu_set_float_mode(i32 %mode)
  %has.part = icmp ult i64 %own, %parts
  br i1 %has.part, label %mine, label %pause
mine:
  %ran = call i64 @run_part(ptr %pool, ptr %job, i64 %generation, i64 %own, i64 %own)
  call void @report(ptr %pool, i64 %ran)
  br label %pause
pause:
  %spins = phi i32 [ 0, %begin ], [ 0, %mine ], [ %spins.next, %look ]
  %spins.next = add i32 %spins, 1
  %long = icmp ugt i32 %spins.next, {patience}
  br i1 %long, label %rest, label %look
look:
  call void @cpu_pause()
  %now = load atomic i64, ptr %pool monotonic, align 8
  %lasts = icmp eq i64 %now, %generation
  br i1 %lasts, label %pause, label %exit
rest:
  %more = call i64 @run_rest(ptr %pool, ptr %job, i64 %generation, i64 %own)
  call void @report(ptr %pool, i64 %more)
  br label %exit
exit:
  ret void
}

; Copy the job of %generation; false, and no job, if another one came.
define internal i1 @read_job(ptr %pool, ptr %job, i64 %generation) #0 {
  %p.body = getelementptr i8, ptr %pool, i64 8
  %p.closure = getelementptr i8, ptr %pool, i64 16
  %p.scratch = getelementptr i8, ptr %pool, i64 24
  %p.stride = getelementptr i8, ptr %pool, i64 32
  %p.n = getelementptr i8, ptr %pool, i64 40
  %p.parts = getelementptr i8, ptr %pool, i64 44
  %p.seats = getelementptr i8, ptr %pool, i64 48
  %p.mode = getelementptr i8, ptr %pool, i64 52
  %body = load atomic ptr, ptr %p.body monotonic, align 8
  %closure = load atomic ptr, ptr %p.closure monotonic, align 8
  %scratch = load atomic ptr, ptr %p.scratch monotonic, align 8
  %stride = load atomic i64, ptr %p.stride monotonic, align 8
  %n = load atomic i32, ptr %p.n monotonic, align 4
  %parts = load atomic i32, ptr %p.parts monotonic, align 4
  %seats = load atomic i32, ptr %p.seats monotonic, align 4
  %mode = load atomic i32, ptr %p.mode monotonic, align 4
  fence acquire
  %after = load atomic i64, ptr %pool monotonic, align 8
  %same = icmp eq i64 %after, %generation
  %n.wide = zext i32 %n to i64
  %parts.wide = zext i32 %parts to i64
  %seats.wide = zext i32 %seats to i64
  call void @set_job(ptr %job, ptr %body, ptr %closure, ptr %scratch, i64 %stride, i64 %n.wide, i64 %parts.wide, i64 %seats.wide)
  %p.own.mode = getelementptr %Job, ptr %job, i32 0, i32 7
  store i32 %mode, ptr %p.own.mode
  ret i1 %same
}

define internal void @set_job(ptr %job, ptr %body, ptr %closure, ptr %scratch, i64 %stride, i64 %n, i64 %parts, i64 %seats) #0 {
  %p.closure = getelementptr %Job, ptr %job, i32 0, i32 1
  %p.scratch = getelementptr %Job, ptr %job, i32 0, i32 2
  %p.stride = getelementptr %Job, ptr %job, i32 0, i32 3
  %p.n = getelementptr %Job, ptr %job, i32 0, i32 4
  %p.parts = getelementptr %Job, ptr %job, i32 0, i32 5
  %p.seats = getelementptr %Job, ptr %job, i32 0, i32 6
  store ptr %body, ptr %job
  store ptr %closure, ptr %p.closure
  store ptr %scratch, ptr %p.scratch
  store i64 %stride, ptr %p.stride
  store i64 %n, ptr %p.n
  store i64 %parts, ptr %p.parts
  store i64 %seats, ptr %p.seats
  ret void
}

; Write the job where workers read it, under a generation that is odd.
define internal void @write_job(ptr %pool, ptr %body, ptr %closure, ptr %scratch, i64 %stride, i64 %n, i64 %parts, i64 %seats) #0 {
  %p.body = getelementptr i8, ptr %pool, i64 8
  %p.closure = getelementptr i8, ptr %pool, i64 16
  %p.scratch = getelementptr i8, ptr %pool, i64 24
  %p.stride = getelementptr i8, ptr %pool, i64 32
  %p.n = getelementptr i8, ptr %pool, i64 40
  %p.parts = getelementptr i8, ptr %pool, i64 44
  %p.seats = getelementptr i8, ptr %pool, i64 48
  %p.mode = getelementptr i8, ptr %pool, i64 52
  %mode = call i32 @cpu_float_mode()
  %n.narrow = trunc i64 %n to i32
  %parts.narrow = trunc i64 %parts to i32
  %seats.narrow = trunc i64 %seats to i32
  fence release
  store atomic ptr %body, ptr %p.body monotonic, align 8
  store atomic ptr %closure, ptr %p.closure monotonic, align 8
  store atomic ptr %scratch, ptr %p.scratch monotonic, align 8
  store atomic i64 %stride, ptr %p.stride monotonic, align 8
  store atomic i32 %n.narrow, ptr %p.n monotonic, align 4
  store atomic i32 %parts.narrow, ptr %p.parts monotonic, align 4
  store atomic i32 %seats.narrow, ptr %p.seats monotonic, align 4
  store atomic i32 %mode, ptr %p.mode monotonic, align 4
  ret void
}

; Add what a worker ran to the iterations that are done.
define internal void @report(ptr %pool, i64 %ran) #0 {
entry:
  %some = icmp ne i64 %ran, 0
  br i1 %some, label %add, label %exit
add:
  %p.done = getelementptr i8, ptr %pool, i64 384
  %before = atomicrmw add ptr %p.done, i64 %ran acq_rel, align 8
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
  %p.caller = getelementptr i8, ptr %pool, i64 512
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

; Wake up to %count sleeping workers; tell whether there were any.
define internal i1 @wake(ptr %pool, i64 %count) #0 {
entry:
  %p.sleeping = getelementptr i8, ptr %pool, i64 256
  %sleeping = load atomic i32, ptr %p.sleeping seq_cst, align 4
  %some = icmp ne i32 %sleeping, 0
  br i1 %some, label %wake, label %exit
wake:
  %p.caller = getelementptr i8, ptr %pool, i64 512
  %cpu = call i32 @own_cpu()
  %caller = add i32 %cpu, 1
  store atomic i32 %caller, ptr %p.caller monotonic, align 4
  %address = ptrtoint ptr %pool to i64
  %woken = call i64 @cpu_syscall(i64 {futex}, i64 %address, i64 129, i64 %count, i64 0, i64 0, i64 0)
  br label %exit
exit:
  ret i1 %some
}

; Run body(closure, i, scratch + stride × thread) for every i in [0, n) and return when all are done;
; no more than %seats threads take part.
define void @tunefarm_parallel(ptr %pool, ptr %body, ptr %closure, i64 %n, ptr %scratch, i64 %stride, i64 %seats) #0 {
entry:
  %job = alloca %Job, align 8
  %no.pool = icmp eq ptr %pool, null
  %few = icmp slt i64 %n, 2
  %many = icmp sgt i64 %n, 2147483647
  %single = icmp ult i64 %seats, 2
  %odd = or i1 %few, %many
  %no.share = or i1 %odd, %single
  %plain = or i1 %no.pool, %no.share
  br i1 %plain, label %serial, label %check
check:
  %p.workers = getelementptr i8, ptr %pool, i64 640
  %workers = load atomic i32, ptr %p.workers acquire, align 4
  %alone = icmp eq i32 %workers, 0
  br i1 %alone, label %serial, label %acquire
acquire:
  %p.lock = getelementptr i8, ptr %pool, i64 128
  %locked = cmpxchg ptr %p.lock, i32 0, i32 1 acquire monotonic, align 4
  %got = extractvalue { i32, i1 } %locked, 1
  br i1 %got, label %prepare, label %serial
serial:
  call void @run_serial(ptr %body, ptr %closure, i64 %n, ptr %scratch)
  ret void
prepare:
  %workers.wide = zext i32 %workers to i64
  %threads = add i64 %workers.wide, 1
  %too.many = icmp ugt i64 %threads, {max_parts}
  %threads.kept = select i1 %too.many, i64 {max_parts}, i64 %threads
  %limited = icmp ult i64 %seats, %threads.kept
  %threads.seated = select i1 %limited, i64 %seats, i64 %threads.kept
  %fewer = icmp slt i64 %n, %threads.seated
  %parts = select i1 %fewer, i64 %n, i64 %threads.seated
  %helpers.parts = sub i64 %parts, 1
  %helpers = select i1 %limited, i64 %workers.wide, i64 %helpers.parts ; any that sleep may be seated
  call void @set_job(ptr %job, ptr %body, ptr %closure, ptr %scratch, i64 %stride, i64 %n, i64 %parts, i64 %threads.seated)
  call void @write_job(ptr %pool, ptr %body, ptr %closure, ptr %scratch, i64 %stride, i64 %n, i64 %parts, i64 %threads.seated)
  %old = load atomic i64, ptr %pool monotonic, align 8
  %closed = or i64 %old, 1
  %generation = add i64 %closed, 1
  %p.claim = getelementptr i8, ptr %pool, i64 1024
  %length = udiv i64 %n, %parts
  %grain = call i64 @grain_of(i64 %n, i64 %parts)
  %grains = call i64 @grains_of(i64 %length, i64 %grain)
  %up = add i64 %grains, 1
  %half = lshr i64 %up, 1
  %word = call i64 @claim_word(i64 %generation, i64 %half, i64 %grains)
  store atomic i64 %word, ptr %p.claim monotonic, align 8
  store atomic i64 %generation, ptr %pool release, align 8
  %slept = call i1 @wake(ptr %pool, i64 %helpers)
  %ran.half = call i64 @run_grains(ptr %job, i64 0, i64 0, i64 %length, i64 %grain, i64 0, i64 %half)
  br i1 %slept, label %rest, label %again
again:
  ; Until others see the new generation, one may look for it and fall asleep, unseen here.
  %slept.since = call i1 @wake(ptr %pool, i64 %helpers)
  br label %rest
rest:
  %ran.rest = call i64 @run_part(ptr %pool, ptr %job, i64 %generation, i64 0, i64 0)
  %ran.own = add i64 %ran.half, %ran.rest
  %p.before = getelementptr i8, ptr %pool, i64 136
  %p.done = getelementptr i8, ptr %pool, i64 384
  %before = load i64, ptr %p.before
  %all = add i64 %before, %n
  %all.but.own = sub i64 %all, %ran.own
  %patience = select i1 %slept, i32 0, i32 {patience}
  br label %look
look:
  %spins = phi i32 [ 0, %rest ], [ %spins.next, %spin ]
  %done = load atomic i64, ptr %p.done acquire, align 8
  %finished = icmp eq i64 %done, %all.but.own
  br i1 %finished, label %release, label %patience.left
patience.left:
  %spins.next = add i32 %spins, 1
  %long = icmp ugt i32 %spins.next, %patience
  br i1 %long, label %others, label %spin
spin:
  call void @cpu_pause()
  br label %look
others:
  %ran.others = call i64 @run_rest(ptr %pool, ptr %job, i64 %generation, i64 0)
  %all.but.mine = sub i64 %all.but.own, %ran.others
  br label %wait
wait:
  %waits = phi i32 [ 0, %others ], [ %waits.next, %waited ]
  %now = load atomic i64, ptr %p.done acquire, align 8
  %ready = icmp eq i64 %now, %all.but.mine
  br i1 %ready, label %release, label %waiting
waiting:
  %waits.next = add i32 %waits, 1
  %too.long = icmp ugt i32 %waits.next, 512
  br i1 %too.long, label %yield, label %pause
pause:
  call void @cpu_pause()
  br label %waited
yield:
  %yielded = call i64 @cpu_syscall(i64 {sched_yield}, i64 0, i64 0, i64 0, i64 0, i64 0, i64 0)
  br label %waited
waited:
  br label %wait
release:
  %total = phi i64 [ %all.but.own, %look ], [ %all.but.mine, %wait ]
  %over = add i64 %generation, 1
  store i64 %total, ptr %p.before
  store atomic i64 %over, ptr %pool release, align 8
  store atomic i32 0, ptr %p.lock release, align 4
  ret void
}

; Wait for a job other than %seen's; return its generation. Spins first, then sleeps.
define internal i64 @await_job(ptr %pool, i64 %seen) #0 {
entry:
  %p.sleeping = getelementptr i8, ptr %pool, i64 256
  %p.spin = getelementptr i8, ptr %pool, i64 648
  br label %start
start:
  %t0 = call i64 @cpu_ticks()
  br label %spin
spin:
  %g = load atomic i64, ptr %pool acquire, align 8
  %changed = call i1 @is_new(i64 %g, i64 %seen)
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
  %idle = load atomic i64, ptr %pool seq_cst, align 8
  %late = call i1 @is_new(i64 %idle, i64 %seen)
  br i1 %late, label %awake, label %doze
doze:
  %address = ptrtoint ptr %pool to i64
  %low = and i64 %idle, 4294967295
  %slept = call i64 @cpu_syscall(i64 {futex}, i64 %address, i64 128, i64 %low, i64 0, i64 0, i64 0)
  call void @move_apart(ptr %pool)
  br label %awake
awake:
  %is = atomicrmw sub ptr %p.sleeping, i32 1 seq_cst, align 4
  br label %start
exit:
  ret i64 %g
}

; Is %generation that of an open job other than %seen's?
define internal i1 @is_new(i64 %generation, i64 %seen) #0 {
  %bit = and i64 %generation, 1
  %open = icmp eq i64 %bit, 0
  %differs = icmp ne i64 %generation, %seen
  %new = and i1 %open, %differs
  ret i1 %new
}

; What a host thread runs: join the pool, take part in every job, return at the shutdown.
define void @tunefarm_worker_main(ptr %pool) #0 {
entry:
  %p.workers = getelementptr i8, ptr %pool, i64 640
  %p.stop = getelementptr i8, ptr %pool, i64 644
  %start = load atomic i64, ptr %pool acquire, align 8
  %early = load atomic i32, ptr %p.stop acquire, align 4
  %late = icmp ne i32 %early, 0
  br i1 %late, label %exit, label %join
join:
  %before = atomicrmw add ptr %p.workers, i32 1 acq_rel, align 4
  %own32 = add i32 %before, 1
  %own = zext i32 %own32 to i64
  br label %wait
wait:
  %seen = phi i64 [ %start, %join ], [ %g, %work ]
  %g = call i64 @await_job(ptr %pool, i64 %seen)
  %stop = load atomic i32, ptr %p.stop acquire, align 4
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %leave, label %work
work:
  call void @work(ptr %pool, i64 %g, i64 %own)
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
  %p.lock = getelementptr i8, ptr %pool, i64 128
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
  %old = load atomic i64, ptr %pool monotonic, align 8
  %closed = or i64 %old, 1
  %new = add i64 %closed, 1
  store atomic i64 %new, ptr %pool seq_cst, align 8
  %slept = call i1 @wake(ptr %pool, i64 2147483647)
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
