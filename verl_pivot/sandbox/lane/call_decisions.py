"""Names of system calls -> the decision about each, with the reason; a call that is named nowhere gets ENOSYS.

A program may make the calls that traced programs make (system_calls.TRACED), and those of ALLOWED, unless a later table
takes one away. Refused calls fail with EPERM, as for any user without rights. Missing ones fail with ENOSYS, as on a
kernel without them: programs and libraries then fall back on older calls.
"""

ALLOWED = {
    "older C libraries and musl call them where new ones call a successor": (
        "access alarm chmod chown creat dup2 epoll_create epoll_wait eventfd fork futimesat getdents getpgrp "
        "getrlimit lchown link lstat mkdir mknod open pause pipe poll readlink rename rmdir select setrlimit "
        "signalfd stat symlink time unlink utime utimes vfork renameat mknodat epoll_pwait accept preadv pwritev "
        "nanosleep gettimeofday ppoll"
    ),
    "newer C libraries call them first, and they grant nothing beyond their predecessors": (
        "close_range faccessat2 fchmodat2 openat2 statx rseq epoll_pwait2 preadv2 pwritev2 renameat2 execveat "
        "getcpu mseal pidfd_open pidfd_send_signal waitid clock_getres clock_nanosleep"
    ),
    "the kernel itself makes programs call them": "restart_syscall rt_sigreturn uretprobe",
    "runtimes of other languages call them": (
        "membarrier pkey_alloc pkey_free pkey_mprotect get_robust_list tkill rt_tgsigqueueinfo rt_sigqueueinfo "
        "rt_sigpending rt_sigsuspend rt_sigtimedwait sigaltstack msync mincore madvise mremap mlock mlock2 "
        "mlockall munlock munlockall getitimer setitimer timer_create timer_settime timer_gettime timer_getoverrun "
        "timer_delete timerfd_create timerfd_settime timerfd_gettime signalfd4 eventfd2 sched_yield "
        "sched_get_priority_max sched_get_priority_min sched_rr_get_interval sched_getattr sched_getparam "
        "sched_getscheduler sched_setparam sched_setscheduler sched_getaffinity getpriority setpriority ioprio_get "
        "ioprio_set arch_prctl times getrusage personality capget capset"
    ),
    "files and their attributes, of which a program can change only its own": (
        "pread64 pwrite64 readv writev truncate ftruncate fallocate fadvise64 readahead sync_file_range fsync "
        "fdatasync copy_file_range sendfile splice tee flock fchmod fchmodat fchown fchownat faccessat linkat "
        "symlinkat readlinkat mkdirat unlinkat utimensat statfs fstatfs umask chdir fchdir getcwd setxattr "
        "lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr "
        "fremovexattr sync syncfs"
    ),
    "sockets of the families that `socket` lets a program open": (
        "bind listen accept4 connect shutdown getsockname getpeername setsockopt getsockopt sendto recvfrom "
        "sendmsg recvmsg sendmmsg recvmmsg socketpair"
    ),
    "identities, of which a program has one alone": (
        "getuid geteuid getgid getegid getgroups getresuid getresgid getsid getpgid setuid setgid setreuid "
        "setregid setresuid setresgid setgroups setfsuid setfsgid setsid setpgid"
    ),
}
"""{reason: calls} that are allowed although no traced program made them, or only some did."""

REFUSED = {
    "mounts": (
        "mount umount2 unshare setns pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount "
        "fspick mount_setattr"
    ),
    "other processes": "ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd process_madvise process_mrelease",
    "kernel interfaces": (
        "bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register fanotify_init fanotify_mark"
    ),
    "keyrings": "add_key request_key keyctl",
    "System V and POSIX queues": (
        "shmget shmat shmdt shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink "
        "mq_timedsend mq_timedreceive mq_notify mq_getsetattr"
    ),
    "modules, kexec, reboot, swap": (
        "init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff"
    ),
    "clocks": "clock_settime settimeofday adjtimex clock_adjtime",
    "accounting, quotas, ports": "acct quotactl quotactl_fd iopl ioperm vhangup syslog modify_ldt",
    "names of the machine": "sethostname setdomainname",
    "file handles": "name_to_handle_at open_by_handle_at",
    "memory that no limit counts": "memfd_create memfd_secret",
    "cores, and slices of time of a program's own choice": "sched_setaffinity sched_setattr",
}
"""{reason: calls} that fail with EPERM."""

MISSING = {
    "flags of new namespaces in memory, which a filter cannot see; C libraries fall back on clone": "clone3",
    "asynchronous I/O, of which the whole machine has a fixed number of requests": (
        "io_setup io_submit io_cancel io_destroy io_getevents io_pgetevents"
    ),
    "inotify, of which a user has 128, and which shows what others open": (
        "inotify_init inotify_init1 inotify_add_watch inotify_rm_watch"
    ),
    "pages that others have read": "cachestat",
    "mounts with the folders of the machine that they show": "statmount listmount listns",
    "memory of the kernel that no limit counts": (
        "seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self"
    ),
    "placement of memory on nodes, and of pages into pipes": (
        "mbind set_mempolicy get_mempolicy set_mempolicy_home_node migrate_pages move_pages vmsplice remap_file_pages"
    ),
    "no C library calls them yet, and each is young code of the kernel": (
        "futex_wake futex_wait futex_requeue futex_waitv map_shadow_stack lsm_get_self_attr lsm_set_self_attr "
        "lsm_list_modules setxattrat getxattrat listxattrat removexattrat file_getattr file_setattr"
    ),
    "left over from kernels of long ago": (
        "_sysctl afs_syscall create_module epoll_ctl_old epoll_wait_old get_kernel_syms get_thread_area getpmsg "
        "lookup_dcookie nfsservctl putpmsg query_module security set_thread_area sysfs tuxcall uselib ustat "
        "vserver"
    ),
}
"""{reason: calls} that fail with ENOSYS."""

ENTERING = ("mount", "umount2", "pivot_root", "unshare", "setns", "landlock_restrict_self")
"""Calls, named above, that a process makes once to enter its pod; a zygote may make them, its programs may not."""
