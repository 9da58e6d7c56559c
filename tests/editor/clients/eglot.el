;; What a person does in Emacs with Eglot:  emacs -Q --batch -l eglot.el FILE PYTHON OUT  -*- lexical-binding: t -*-
;; Where Debian has its packages.
(dolist (folder (file-expand-wildcards "/usr/share/emacs/site-lisp/elpa-src/*")) (push folder load-path))
(require 'eglot)
(require 'json)

(defvar file (pop command-line-args-left))
(defvar python (pop command-line-args-left))
(defvar out (pop command-line-args-left))
(defvar states nil)
(defvar found nil)
(defvar server nil)

(cl-defmethod eglot-handle-notification (_server (_method (eql stepscope/state)) &key state message &allow-other-keys)
  (push (cons state message) states))
(cl-defmethod eglot-handle-notification (_server (_method (eql stepscope/marks)) &key &allow-other-keys))

(defun wait-for (what ready)
  (let ((deadline (+ (float-time) 120)))
    (while (not (funcall ready))
      (when (> (float-time) deadline) (error "nothing came of %s" what))
      (accept-process-output nil 0.05))))

(defun note (name value) (push (cons name value) found))

(defun line-here () (buffer-substring-no-properties (line-beginning-position) (line-end-position)))

(defun to-line-with (text)
  (goto-char (point-min))
  (search-forward text)
  (beginning-of-line))

(defun measure ()
  (setq states nil)
  (eglot-execute-command server "stepscope.measureFile" (vector (eglot--path-to-uri file)))
  (wait-for "a measurement" (lambda () (member (caar states) '("measured" "failed")))))

(defun titles ()
  (mapcar (lambda (action) (plist-get action :title))
          (append (eglot-code-actions (line-beginning-position) (line-end-position) nil) nil)))

(setq eglot-sync-connect 240 eglot-connect-timeout 240 eglot-confirm-server-initiated-edits nil)
(add-to-list 'eglot-server-programs
             `(python-mode . (,python "-m" "stepscope" "lsp" :initializationOptions (:runScripts "always"))))
(find-file file)
(buffer-enable-undo)
(apply #'eglot--connect (eglot--guess-contact))
(setq server (eglot-current-server))

(to-line-with "batch_size=32")
;; Sizes are offered only if the measurement predicts well, on a busy machine too.
(cl-loop repeat 8 do (measure) until (> (length (titles)) 1))
(note 'state (caar states))
(note 'message (cdar states))

(save-excursion
  (to-line-with "self.body(x)")
  (eglot-hover-eldoc-function (lambda (text &rest _) (note 'hover (substring-no-properties text))))
  (wait-for "a hover" (lambda () (assq 'hover found))))

(note 'before (line-here))
(undo-boundary)
(let ((title (cl-find-if (lambda (title) (string-prefix-p "Set batch size to" title)) (titles))))
  (cl-letf (((symbol-function 'completing-read) (lambda (&rest _) title))
            (last-nonmenu-event ?a)) ; from the keyboard, not a menu
    (eglot--read-execute-code-action
     (eglot-code-actions (line-beginning-position) (line-end-position) nil) server)))
(note 'after (line-here))
(undo-boundary)
(setq last-command 'ignore)
(undo 1)
(note 'undone (line-here))
(with-temp-file out (insert (json-encode found)))
(eglot-shutdown server)
