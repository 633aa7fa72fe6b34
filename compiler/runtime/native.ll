; The rest of the runtime that is native code: timing loops, cache flushing, copying.

; Ticks spent in %number calls of %function. Without ranges the clock is read around the loop.
; With %range_count ranges of { ptr, i64 bytes }, they are evicted from the caches before each
; call, and the clock is read around each call.
define i64 @tunefarm_time(ptr %function, ptr %arguments, i64 %count, i64 %number, ptr %ranges, i64 %range_count) #0 {
entry:
  %warm = icmp eq i64 %range_count, 0
  br i1 %warm, label %warm.start, label %cold
warm.start:
  %t0 = call i64 @cpu_ticks()
  br label %warm.loop
warm.loop:
  %i = phi i64 [ 0, %warm.start ], [ %i.next, %warm.loop ]
  call void @tunefarm_invoke(ptr %function, ptr %arguments, i64 %count)
  %i.next = add i64 %i, 1
  %i.more = icmp slt i64 %i.next, %number
  br i1 %i.more, label %warm.loop, label %warm.stop
warm.stop:
  %t1 = call i64 @cpu_ticks()
  %warm.ticks = sub i64 %t1, %t0
  ret i64 %warm.ticks
cold:
  %j = phi i64 [ 0, %entry ], [ %j.next, %cold ]
  %sum = phi i64 [ 0, %entry ], [ %sum.next, %cold ]
  call void @tunefarm_flush(ptr %ranges, i64 %range_count)
  %c0 = call i64 @cpu_ticks()
  call void @tunefarm_invoke(ptr %function, ptr %arguments, i64 %count)
  %c1 = call i64 @cpu_ticks()
  %spent = sub i64 %c1, %c0
  %sum.next = add i64 %sum, %spent
  %j.next = add i64 %j, 1
  %j.more = icmp slt i64 %j.next, %number
  br i1 %j.more, label %cold, label %cold.stop
cold.stop:
  ret i64 %sum.next
}

; Evict %count ranges of { ptr, i64 bytes } from every cache.
define void @tunefarm_flush(ptr %ranges, i64 %count) #0 {
entry:
  br label %range
range:
  %k = phi i64 [ 0, %entry ], [ %k.next, %range.end ]
  %left = icmp slt i64 %k, %count
  br i1 %left, label %begin, label %exit
begin:
  %p.start = getelementptr { ptr, i64 }, ptr %ranges, i64 %k, i32 0
  %p.bytes = getelementptr { ptr, i64 }, ptr %ranges, i64 %k, i32 1
  %start = load ptr, ptr %p.start
  %bytes = load i64, ptr %p.bytes
  br label %line
line:
  %offset = phi i64 [ 0, %begin ], [ %offset.next, %flush ]
  %inside = icmp ult i64 %offset, %bytes
  br i1 %inside, label %flush, label %range.end
flush:
  %address = getelementptr i8, ptr %start, i64 %offset
  call void @cpu_flush_line(ptr %address)
  %offset.next = add i64 %offset, 64
  br label %line
range.end:
  %k.next = add i64 %k, 1
  br label %range
exit:
  call void @cpu_fence()
  ret void
}

; Set how the calling thread computes with floats, unless %mode is 0; return how it did.
define i32 @tunefarm_float_mode(i32 %mode) #0 {
  %was = call i32 @cpu_float_mode()
  call void @cpu_set_float_mode(i32 %mode)
  ret i32 %was
}

define i64 @tunefarm_ticks() #0 {
  %ticks = call i64 @cpu_ticks()
  ret i64 %ticks
}

; What an exported library offers for LLVM's calls of memcpy, memmove and memset: it imports nothing.
define ptr @tunefarm_memcpy(ptr %to, ptr %from, i64 %bytes) #0 {
entry:
  br label %wide
wide:
  %i = phi i64 [ 0, %entry ], [ %i.next, %wide.body ]
  %i.next = add i64 %i, 64
  %fits = icmp ule i64 %i.next, %bytes
  br i1 %fits, label %wide.body, label %narrow
wide.body:
  %wide.from = getelementptr i8, ptr %from, i64 %i
  %wide.to = getelementptr i8, ptr %to, i64 %i
  %vector = load <16 x i32>, ptr %wide.from, align 1
  store <16 x i32> %vector, ptr %wide.to, align 1
  br label %wide
narrow:
  %j = phi i64 [ %i, %wide ], [ %j.next, %narrow.body ]
  %more = icmp ult i64 %j, %bytes
  br i1 %more, label %narrow.body, label %exit
narrow.body:
  %narrow.from = getelementptr i8, ptr %from, i64 %j
  %narrow.to = getelementptr i8, ptr %to, i64 %j
  %byte = load i8, ptr %narrow.from
  store i8 %byte, ptr %narrow.to
  %j.next = add i64 %j, 1
  br label %narrow
exit:
  ret ptr %to
}

define ptr @tunefarm_memmove(ptr %to, ptr %from, i64 %bytes) #0 {
entry:
  %forward = icmp ule ptr %to, %from
  br i1 %forward, label %copy, label %backward
copy:
  %copied = call ptr @tunefarm_memcpy(ptr %to, ptr %from, i64 %bytes)
  ret ptr %to
backward:
  %i = phi i64 [ %bytes, %entry ], [ %i.next, %body ]
  %more = icmp ne i64 %i, 0
  br i1 %more, label %body, label %exit
body:
  %i.next = sub i64 %i, 1
  %p.from = getelementptr i8, ptr %from, i64 %i.next
  %p.to = getelementptr i8, ptr %to, i64 %i.next
  %byte = load i8, ptr %p.from
  store i8 %byte, ptr %p.to
  br label %backward
exit:
  ret ptr %to
}

define ptr @tunefarm_memset(ptr %to, i32 %value, i64 %bytes) #0 {
entry:
  %byte = trunc i32 %value to i8
  %one = insertelement <64 x i8> poison, i8 %byte, i64 0
  %vector = shufflevector <64 x i8> %one, <64 x i8> poison, <64 x i32> zeroinitializer
  br label %wide
wide:
  %i = phi i64 [ 0, %entry ], [ %i.next, %wide.body ]
  %i.next = add i64 %i, 64
  %fits = icmp ule i64 %i.next, %bytes
  br i1 %fits, label %wide.body, label %narrow
wide.body:
  %wide.to = getelementptr i8, ptr %to, i64 %i
  store <64 x i8> %vector, ptr %wide.to, align 1
  br label %wide
narrow:
  %j = phi i64 [ %i, %wide ], [ %j.next, %narrow.body ]
  %more = icmp ult i64 %j, %bytes
  br i1 %more, label %narrow.body, label %exit
narrow.body:
  %narrow.to = getelementptr i8, ptr %to, i64 %j
  store i8 %byte, ptr %narrow.to
  %j.next = add i64 %j, 1
  br label %narrow
exit:
  ret ptr %to
}
