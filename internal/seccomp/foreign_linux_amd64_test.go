package seccomp

import (
	"debug/elf"
	"encoding/binary"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// foreign are ways to call the kernel other than the native one. Without a
// filter each comes back, or ends its process well.
var foreign = map[string]func(){
	"int 0x80": func() {
		// mov eax, 20 (getpid of i386); int 0x80; ret
		code := []byte{0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3}
		page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			panic(err)
		}
		copy(page, code)
		// A func is a pointer to a pointer to code.
		entry := uintptr(unsafe.Pointer(&page[0]))
		at := &entry
		(*(*func())(unsafe.Pointer(&at)))()
	},
	"32-bit program": func() {
		fd, err := unix.MemfdCreate("program", unix.MFD_CLOEXEC)
		if err != nil {
			panic(err)
		}
		if _, err := unix.Write(fd, elf32()); err != nil {
			panic(err)
		}
		empty := []byte{0}
		none := []*byte{nil}
		_, _, errno := unix.Syscall6(unix.SYS_EXECVEAT, uintptr(fd), uintptr(unsafe.Pointer(&empty[0])),
			uintptr(unsafe.Pointer(&none[0])), uintptr(unsafe.Pointer(&none[0])), unix.AT_EMPTY_PATH, 0)
		panic(errno)
	},
	"x32": func() {
		// getpid by the convention of x32. A kernel built without it says ENOSYS.
		syscall.RawSyscall(x32Bit|unix.SYS_GETPID, 0, 0, 0)
	},
	"x32 that only x32 has": func() {
		syscall.RawSyscall(x32Bit|543, 0, 0, 0) // io_setup
	},
}

// elf32 is a static i386 program that exits with 0.
func elf32() []byte {
	const base, headers = 0x08048000, 52 + 32
	code := []byte{
		0xB8, 1, 0, 0, 0, // mov eax, 1 (exit)
		0x31, 0xDB, // xor ebx, ebx
		0xCD, 0x80, // int 0x80
	}
	size := uint32(headers + len(code))
	h := elf.Header32{
		Ident: [elf.EI_NIDENT]byte{0x7F, 'E', 'L', 'F', byte(elf.ELFCLASS32), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_386), Version: uint32(elf.EV_CURRENT),
		Entry: base + headers, Phoff: 52, Ehsize: 52, Phentsize: 32, Phnum: 1,
	}
	p := elf.Prog32{Type: uint32(elf.PT_LOAD), Vaddr: base, Paddr: base, Filesz: size, Memsz: size, Flags: uint32(elf.PF_R | elf.PF_X), Align: 0x1000}
	b, err := binary.Append(nil, binary.LittleEndian, h)
	if err != nil {
		panic(err)
	}
	if b, err = binary.Append(b, binary.LittleEndian, p); err != nil {
		panic(err)
	}
	return append(b, code...)
}

func callsOfArch() []call {
	args := [6]uintptr{bad, bad, bad, bad, bad, bad}
	return []call{
		{"B3", "iopl", unix.SYS_IOPL, args, unix.EPERM},
		{"B3", "ioperm", unix.SYS_IOPERM, args, unix.EPERM},
		{"B3", "modify_ldt", unix.SYS_MODIFY_LDT, args, unix.EPERM},
		{"B8", "mknod character", unix.SYS_MKNOD, [6]uintptr{bad, unix.S_IFCHR | 0o666, 0x103}, unix.EPERM},
		{"B8", "mknod block", unix.SYS_MKNOD, [6]uintptr{bad, unix.S_IFBLK | 0o666 | 1<<32, 0x103}, unix.EPERM},
		{"", "mknod pipe", unix.SYS_MKNOD, [6]uintptr{bad, unix.S_IFIFO | 0o600}, unix.EFAULT},
	}
}

func mountCallsOfArch() []call {
	const create = unix.O_CREAT | unix.O_WRONLY
	return []call{
		{"L2", "chmod 4755", unix.SYS_CHMOD, [6]uintptr{bad, 0o4755}, unix.EPERM},
		{"L2", "chmod 755", unix.SYS_CHMOD, [6]uintptr{bad, 0o755}, unix.EFAULT},
		{"L2", "creat 2755", unix.SYS_CREAT, [6]uintptr{bad, 0o2755}, unix.EPERM},
		{"L2", "creat 755", unix.SYS_CREAT, [6]uintptr{bad, 0o755}, unix.EFAULT},
		{"L2", "open 4755", unix.SYS_OPEN, [6]uintptr{bad, create, 0o4755}, unix.EPERM},
		{"L2", "open 755", unix.SYS_OPEN, [6]uintptr{bad, create, 0o755}, unix.EFAULT},
		{"L2", "open to read", unix.SYS_OPEN, [6]uintptr{bad, 0, 0o4755}, unix.EFAULT},
		{"L2", "mknod 4755", unix.SYS_MKNOD, [6]uintptr{bad, unix.S_IFREG | 0o4755}, unix.EPERM},
	}
}
