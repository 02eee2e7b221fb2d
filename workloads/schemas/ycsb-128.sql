-- YCSB with tuples of 128 bytes: the key and 4 columns of 30 bytes of random text (paper §5.3).
CREATE TABLE usertable (
  ycsb_key BIGINT NOT NULL,
  field0 CHAR(30) NOT NULL,
  field1 CHAR(30) NOT NULL,
  field2 CHAR(30) NOT NULL,
  field3 CHAR(30) NOT NULL,
  PRIMARY KEY (ycsb_key)
) ENGINE = InnoDB DEFAULT CHARSET = latin1 COMMENT = 'evictable; partition by ycsb_key';
