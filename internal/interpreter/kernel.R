# The interpreter of a context of R: it runs blocks of code that arrive as lines on a pipe, one after the
# other, in the global environment. It needs R 4.0 and nothing but its base packages. See lines.go and r.go.
# A line with the list `setup` precedes it. Its environment is below that of base: functions that code defines do
# not come between.
local({
  lines <- get(".sandpit", globalenv())
  rm(".sandpit", envir = globalenv())
  marks <- list(fifo("/proc/self/fd/4", "w", blocking = TRUE), fifo("/proc/self/fd/5", "w", blocking = TRUE))
  path <- paste0(setup$socket, ".out")
  unlink(paste0(setup$stale, ".out"))
  count <- 0L
  found <- character() # the outputs of the run, as JSON
  truncated <- FALSE

  mark <- function(nonce, texts = NULL) {
    for (i in seq_along(marks)) try({
      writeLines(c("\036", nonce, if (is.null(texts)) "\036" else c("\037", texts[[i]], "\036")), marks[[i]], sep = "", useBytes = TRUE)
      flush(marks[[i]])
    }, silent = TRUE)
  }

  # JSON.

  quoted <- function(text) {
    text <- enc2utf8(as.character(text))
    wrong <- !validUTF8(text)
    text[wrong] <- iconv(text[wrong], "UTF-8", "UTF-8", sub = "byte")
    text <- gsub("\\", "\\\\", text, fixed = TRUE)
    text <- gsub('"', '\\"', text, fixed = TRUE)
    for (code in 1:31) text <- gsub(intToUtf8(code), sprintf("\\u%04x", code), text, fixed = TRUE)
    paste0('"', text, '"')
  }

  object <- function(fields) paste0("{", paste0(quoted(names(fields)), ":", unlist(fields), collapse = ","), "}")

  base64 <- function(bytes) {
    digits <- utf8ToInt("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
    missing <- -length(bytes) %% 3L
    m <- matrix(as.integer(c(bytes, raw(missing))), nrow = 3)
    text <- digits[1L + rbind(m[1, ] %/% 4L, m[1, ] %% 4L * 16L + m[2, ] %/% 16L, m[2, ] %% 16L * 4L + m[3, ] %/% 64L, m[3, ] %% 64L)]
    if (missing > 0) text[length(text) + 1L - seq_len(missing)] <- 61L
    intToUtf8(text)
  }

  # The columns of a data frame, as lists by their names.
  columns <- function(frame) {
    column <- function(values) {
      text <- if (is.logical(values)) ifelse(values, "true", "false")
        else if (is.numeric(values) && !is.factor(values) && is.null(attr(values, "class"))) ifelse(is.finite(values), formatC(values, digits = 15, format = "g", width = 1), NA)
        else quoted(if (is.character(values) || is.factor(values)) as.character(values) else format(values, trim = TRUE))
      text[is.na(values) | is.na(text)] <- "null"
      paste0("[", paste0(text, collapse = ","), "]")
    }
    object(lapply(as.list(frame), column))
  }

  # Values.

  add <- function(fields) {
    text <- object(fields)
    if (sum(nchar(found, "bytes") + 1) + nchar(text, "bytes") + 2 > setup$max) {
      truncated <<- TRUE
      return(FALSE)
    }
    found[[length(found) + 1L]] <<- text
    TRUE
  }

  formats <- c(
    "text/plain" = "text", "text/html" = "html", "text/markdown" = "markdown", "image/svg+xml" = "svg",
    "text/latex" = "latex", "application/javascript" = "javascript"
  )

  # Prints a value with the methods of the user.
  print_value <- function(value) eval(as.call(list(print, as.call(list(quote, value)))), globalenv())

  show_value <- function(value, main) {
    fields <- list(main = if (main) "true" else "false")
    text <- utils::capture.output(print_value(value))
    if (length(text) == 0) return(invisible()) # it has drawn something
    fields$text <- quoted(paste(text, collapse = "\n"))
    if (is.data.frame(value) && nrow(value) <= 10000 && ncol(value) > 0) {
      fields$data <- tryCatch(columns(value), error = function(e) NULL)
    }
    if (!add(fields) && !add(fields[c("main", "text")])) {
      add(list(main = fields$main, text = quoted(sprintf("(%s can't be displayed: it is too large)", class(value)[[1]]))))
    }
  }

  # Displays a value, or with raw formats as text by their media types.
  display <- function(value, raw = NULL) {
    if (is.null(raw)) return(show_value(value, FALSE))
    fields <- list(main = "false")
    for (kind in intersect(names(raw), names(formats))) fields[[formats[[kind]]]] <- quoted(paste(raw[[kind]], collapse = "\n"))
    extra <- setdiff(names(raw), names(formats))
    if (length(extra) > 0) fields$extra <- object(lapply(raw[extra], function(text) quoted(paste(text, collapse = "\n"))))
    add(fields)
    invisible()
  }
  tools <- attach(NULL, name = "tools:sandpit")
  assign("display", display, envir = tools)

  # Plots go to files, and are displayed when the run has ended.

  plots <- tempfile("plots")
  options(device = function(...) {
    dir.create(plots, showWarnings = FALSE)
    grDevices::png(file.path(plots, "%06d.png"), width = 960, height = 720, res = 120)
  })
  show_plots <- function() {
    if (!dir.exists(plots)) return(invisible())
    grDevices::graphics.off()
    for (file in sort(list.files(plots, full.names = TRUE))) {
      size <- file.size(file)
      if (size * 4 / 3 > setup$max) truncated <<- TRUE
      else add(list(main = "false", png = quoted(base64(readBin(file, "raw", size)))))
    }
    unlink(plots, recursive = TRUE)
  }

  # Runs.

  clipped <- function(text, most) {
    n <- nchar(text)
    if (n <= most) text else paste0(substr(text, 1, most %/% 2), "\n...\n", substr(text, n - most %/% 2, n))
  }

  short <- function(call) substr(deparse(call, nlines = 1L)[[1]], 1, 200)

  # The call of a condition, unless that is the one below.
  call_of <- function(e) if (!identical(conditionCall(e), quote(eval(all[i], globalenv())))) conditionCall(e)

  describe <- function(e, calls) {
    value <- clipped(paste(conditionMessage(e), collapse = "\n"), 32768)
    text <- paste0("Error", if (!is.null(call_of(e))) paste0(" in ", short(call_of(e))), ": ", value)
    for (call in calls) {
      at <- attr(call, "srcref")
      text <- c(text, paste0("  ", if (!is.null(at)) paste0(attr(at, "srcfile")$filename, ", line ", at[[1]], ": "), short(call)))
    }
    list(name = quoted(class(e)[[1]]), value = quoted(value), traceback = quoted(clipped(paste(text, collapse = "\n"), 65536)))
  }

  evaluate <- function(code, name) {
    all <- parse(text = code, srcfile = srcfilecopy(name, strsplit(code, "\n", fixed = TRUE)[[1]]), keep.source = TRUE)
    for (i in seq_along(all)) {
      got <- withVisible(eval(all[i], globalenv()))
      if (got$visible && i < length(all)) print_value(got$value)
      else if (got$visible) show_value(got$value, TRUE)
    }
  }

  # The frames of the user's code among all calls: behind the last that evaluates it, and before those that
  # handle the error.
  users <- function(calls) {
    is <- function(name) vapply(calls, function(call) identical(call[[1]], name), NA)
    from <- which(is(quote(withVisible)))
    to <- which(is(quote(.handleSimpleError)))
    if (length(from) == 0) return(list())
    calls[seq_along(calls) > from[[length(from)]] + 2 & seq_along(calls) < c(to, length(calls))[[1]]]
  }

  run <- function(request) {
    count <<- count + 1L
    found <<- character()
    truncated <<- FALSE
    unlink(path)
    mark(request$begin)
    before <- Sys.getenv(names(request$env), NA, names = TRUE)[names(request$env)]
    if (length(request$env) > 0) do.call(Sys.setenv, as.list(request$env))
    calls <- list()
    error <- tryCatch({
      allowInterrupts(withCallingHandlers({
        evaluate(request$code, sprintf("<run %d>", count))
        show_plots()
      }, error = function(e) calls <<- users(sys.calls()), warning = function(e) if (is.null(call_of(e)) && getOption("warn") == 1) {
        message("Warning: ", conditionMessage(e))
        invokeRestart("muffleWarning")
      }))
      NULL
    }, interrupt = function(e) list(name = quoted("interrupt"), value = quoted(""), traceback = quoted("the run was interrupted")),
    error = function(e) describe(e, calls))
    if (!is.null(error)) tryCatch(show_plots(), error = function(e) NULL)
    for (name in names(before)) if (is.na(before[[name]])) Sys.unsetenv(name) else do.call(Sys.setenv, as.list(before[name]))
    result <- list(count = count, truncated = if (truncated) "true" else "false")
    if (!is.null(error)) result$error <- object(error)
    if (length(found) > 0) {
      text <- charToRaw(paste0("[", paste0(found, collapse = ","), "]"))
      umask <- Sys.umask("177")
      try(writeBin(text, path), silent = TRUE)
      Sys.umask(umask)
      result$outputs <- length(text)
    }
    mark(request$nonce, list(object(result), ""))
  }

  options(warn = 1, echo = FALSE)
  mark(setup$nonce)
  repeat suspendInterrupts({
    line <- readLines(lines, 1, warn = FALSE, encoding = "UTF-8")
    if (length(line) == 0) quit("no")
    request <- eval(parse(text = line, keep.source = FALSE, encoding = "UTF-8"))
    if (is.null(request$code)) {
      # An interrupt until now was about an earlier run.
      tryCatch(allowInterrupts(Sys.sleep(0)), interrupt = function(e) NULL)
      mark(request$nonce, list(paste0('{"runs":', count, ",", substring(setup$greeting, 2)), ""))
    } else run(request)
  })
})
